"""Reputation of providers: the fold of a coordinator's public log, and the checks of its lines."""
