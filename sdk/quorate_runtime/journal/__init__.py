"""The journal: a daemon's events, pending effects and snapshots on disk."""
