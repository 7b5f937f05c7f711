"""Rules of when money moves, and how much may be owed."""
