"""Opens the provider's keys and chooses the one that signs."""
