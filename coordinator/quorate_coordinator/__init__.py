"""quorate_coordinator."""
