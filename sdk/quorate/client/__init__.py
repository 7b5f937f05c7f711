"""The client at work: market, runs, money, transfers."""
