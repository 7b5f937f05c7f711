"""Receipts and runs that leave the state."""
