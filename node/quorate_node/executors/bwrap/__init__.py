"""The executor over bubblewrap, for machines without a container engine."""
