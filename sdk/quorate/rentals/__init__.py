"""Rentals: machines that a client pays by the minute, and its ways into them."""
