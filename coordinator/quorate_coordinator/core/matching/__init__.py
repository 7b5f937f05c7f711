"""Matching: offers, columns, queue."""
