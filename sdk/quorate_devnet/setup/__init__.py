"""Sets up a devnet on chain: contracts, registrations, money."""
