"""The devnet's child processes."""
