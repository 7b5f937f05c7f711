"""Receipts, and runs that leave the state for the archive."""
