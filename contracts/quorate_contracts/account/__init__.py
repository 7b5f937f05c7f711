"""What accounts of all roles do on chain: pure goals, and the ways to the chain."""
