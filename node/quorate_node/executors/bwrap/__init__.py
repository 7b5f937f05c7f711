"""The executor on bubblewrap, for machines without a container engine."""
