"""quorate_protocol."""
