"""Turns job files and Python values into job specs."""
