"""The provider on chain: registration, claims, jury service, key rotation."""
