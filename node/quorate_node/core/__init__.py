"""The provider's decisions: pure functions and machines."""
