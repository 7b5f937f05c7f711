"""The provider's keys."""
