"""The provider on chain: registration, key rotation, jury duty, claims."""
