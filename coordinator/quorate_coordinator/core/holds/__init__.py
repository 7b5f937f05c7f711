"""Held pay and the windows that release it."""
