"""Audits: draws, batches, verdicts, faults."""
