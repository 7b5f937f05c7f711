"""A client's own money: deposits, balances, withdrawals, and its access to the chain."""
