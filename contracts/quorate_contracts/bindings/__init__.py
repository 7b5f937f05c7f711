"""Typed bindings of the contracts. Each method returns a `Call` to send or a `Query` to ask; none
of them talks to a chain.
"""
