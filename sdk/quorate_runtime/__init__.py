"""quorate_runtime."""
