"""The daemon as a process: logs, metrics, health, shutdown, crash points."""
