"""Messages between the provider and its coordinators, and its attestation."""
