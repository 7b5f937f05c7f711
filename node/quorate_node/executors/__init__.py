"""Executors: what runs a task in a sandbox, and what they share."""
