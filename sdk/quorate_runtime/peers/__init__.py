"""Adapters of the `Peers` port."""
