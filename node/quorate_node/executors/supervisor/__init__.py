"""The supervisor process that keeps a lease's program running while the daemon restarts."""
