"""The content store on disk."""
