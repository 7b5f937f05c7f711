"""quorate."""
