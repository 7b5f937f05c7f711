"""Runs accepted executions and performs the core's effects."""
