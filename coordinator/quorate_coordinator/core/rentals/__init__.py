"""Rentals: machines leased by the minute, without a result (PROTOCOL §12)."""
