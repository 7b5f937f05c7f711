"""The provider on chain: registration, key rotation, jury duty, tabs, funded orders, leaving."""
