"""SQLite files: those that must not be lost and those a daemon can do without."""
