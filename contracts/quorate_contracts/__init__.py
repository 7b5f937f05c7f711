"""quorate_contracts."""
