"""The coordinator on chain: registration, log follower, own money, cases, beacon rounds."""
