"""A whole market on one machine: `quorate devnet up`, `quorate devnet demo`, `Market.local()`.

`devnet` starts it, `setup.genesis` deploys and funds it, `processes.reaper` cleans up after it,
`demo` shows the whole story. For development only: its keys are weak, and anyone with the beacon's
seed knows every round.
"""
