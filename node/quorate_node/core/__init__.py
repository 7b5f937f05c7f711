"""The provider's decisions: pure functions and machines, standard library only."""
