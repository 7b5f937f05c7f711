"""Verifiers of attestation, which both daemons run."""
