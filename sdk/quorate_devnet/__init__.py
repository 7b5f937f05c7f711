"""quorate_devnet."""
