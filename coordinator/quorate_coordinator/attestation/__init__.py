"""Challenges of providers, and rechecks of the attestations that offers name."""
