"""Attestation of GPUs by challenge (level 1): catalogue, challenge, proof, records, rechecks.

Modules below `arithmetic` and `provers` need numpy (extra `attest`); the others do not.
"""
