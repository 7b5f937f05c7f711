"""Signed messages, documents, frames and views."""
