"""The beginning of a devnet: contracts, funds, bulk transactions."""
