"""The supervisor: a small process that runs a lease's program while the daemon restarts.

The supervisor starts isolated, with the standard library only. Every module here except
`supervised_leases`, which is the daemon's side, may import only the standard library and its
siblings. This file imports nothing.
"""
