"""The executor over a Docker engine."""
