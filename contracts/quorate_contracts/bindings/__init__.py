"""Typed bindings of the contracts. Each method returns a `Call` to send or a `Query` to ask. None
of them contacts a chain.
"""
