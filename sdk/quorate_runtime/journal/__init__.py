"""The journal: what a daemon decided, on disk."""
