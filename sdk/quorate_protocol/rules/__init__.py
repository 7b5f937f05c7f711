"""The protocol's rules as pure functions."""
