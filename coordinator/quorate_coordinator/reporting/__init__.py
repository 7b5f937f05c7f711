"""SQL tables for people, projected from the state."""
