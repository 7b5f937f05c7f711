"""The commands of `quorate coordinator`."""
