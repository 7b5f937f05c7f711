"""Adapters: chain, beacon, peers, engine of effects. Everything here awaits and decides nothing."""
