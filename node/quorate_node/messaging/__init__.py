"""Messages between the provider and its coordinators."""
