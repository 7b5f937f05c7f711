"""The coordinator's decisions: pure, no clock, no IO. The shell feeds verified events in and
performs the effects that come out.
"""
