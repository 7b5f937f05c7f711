"""Container images: archives, registries, declared volumes."""
