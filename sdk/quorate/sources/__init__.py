"""Finds out what a job's sources hold, and pins it by SHA-256, before an order is signed."""
