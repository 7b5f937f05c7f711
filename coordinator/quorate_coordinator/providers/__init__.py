"""Frames from connected providers."""
