"""Money: the ledger, epochs, and what the chain has money for."""
