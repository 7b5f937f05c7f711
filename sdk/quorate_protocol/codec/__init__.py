"""Canonical JSON for signed and exchanged values, and MessagePack for stored ones."""
