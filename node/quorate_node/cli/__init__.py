"""The commands of `quorate node`."""
