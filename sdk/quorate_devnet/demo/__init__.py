"""Implements `quorate devnet demo`: two clients, five providers of which one lies, and all that
follows.
"""
