"""What both daemons share and that does IO: journal, actor, clock, keys, signatures, peers,
chain client, logs, metrics.
"""
