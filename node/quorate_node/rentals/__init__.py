"""Rentals at their provider: the way in, its network, its secrets, and the watch for idle ones."""
