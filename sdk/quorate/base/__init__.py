"""Errors that users see, and the exit codes of the command line."""
