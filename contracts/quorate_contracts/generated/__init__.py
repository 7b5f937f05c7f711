"""Typed contracts, written by `binding_writer` from their ABI."""
