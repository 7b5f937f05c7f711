"""Watches what coordinators post on chain, and challenges what contradicts their signatures."""
