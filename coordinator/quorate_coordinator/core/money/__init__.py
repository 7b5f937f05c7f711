"""Money: the ledger, payees and their vouchers, and what goes to the chain."""
