"""Money: ledger, epochs, what the chain covers."""
