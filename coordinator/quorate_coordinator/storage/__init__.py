"""The coordinator's files: archive, documents, staging store, run logs."""
