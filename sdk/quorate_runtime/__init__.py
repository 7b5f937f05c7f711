"""Code with IO that both daemons share: journal, actor, clock, keys, signatures, peers, chain
client, logs, metrics.
"""
