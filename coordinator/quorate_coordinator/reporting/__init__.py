"""SQL tables that people query, written from the coordinator's state."""
