"""Sandboxes: rentals that a program starts, uses for commands and files, and destroys."""
