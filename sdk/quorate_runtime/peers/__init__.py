"""Adapters of the ports `Peers` and `Gossip` that need no libp2p."""
