"""Adapters: the shells behind the ports (container engines, processes)."""
