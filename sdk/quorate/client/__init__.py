"""The client: market, runs, money and transfers."""
