"""Reads the market from gossip and the chain, without asking a coordinator."""
