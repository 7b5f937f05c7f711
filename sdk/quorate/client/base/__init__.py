"""A client's profile, session, signed requests, and ledger."""
