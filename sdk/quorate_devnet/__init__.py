"""A whole market on one machine: `quorate devnet up`, `quorate devnet demo`, `Market.local()`.

`market.devnet` starts it, `market.genesis` deploys and funds it, `market.reaper` cleans up after
it, `demo` shows the whole story. For development only: its keys are weak, and anyone with the
beacon's seed knows every round.
"""
