"""Frames that connected providers send."""
