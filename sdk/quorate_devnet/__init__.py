"""A whole market on one machine, above all three programs: `quorate devnet up`, `quorate devnet
demo`, `Market.local()`.

`supervisor` starts it, `genesis` puts it on chain, `reaper` cleans up after it, `demo` is the
main job. For development only: every key here is worthless, and the beacon's rounds are known to
whoever holds its seed.
"""
