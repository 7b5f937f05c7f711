"""Typed faces of the contracts: each function gives a `Call` or a `Query`; nothing here talks to
a chain.
"""
