"""The command `quorate verify` and what it prints."""
