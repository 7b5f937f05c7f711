"""The actor loop of a daemon, its codec and its outbox of effects."""
