"""The second place of a coordinator's files: the continuous copy, and restoring from it."""
