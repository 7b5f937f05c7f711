"""The executor on bubblewrap, and the supervisor that runs a lease's program while the daemon
restarts.

The supervisor starts isolated. What `lease_run` imports, here and in `base`, may import only the
standard library and its like. This file and `base/__init__.py` import nothing.
"""
