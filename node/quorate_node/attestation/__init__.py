"""The provider as prover and as drawn verifier of attestation."""
