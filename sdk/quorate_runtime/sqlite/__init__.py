"""SQLite files of daemons: those that must not be lost, and those a daemon can run without."""
