"""Hashes, EIP-712 digests, Merkle trees, commitments and bearer tokens."""
