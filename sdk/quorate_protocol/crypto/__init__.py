"""Hashes, EIP-712, Merkle trees, commitments, bearer tokens."""
