"""The actor of a daemon: its event loop, its codec and its outbox of effects."""
