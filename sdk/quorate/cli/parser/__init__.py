"""Finds, loads and parses the commands of `quorate`, and the flags of every command."""
