"""The coordinator on chain: registration, log follower, claims, cases, beacon rounds."""
