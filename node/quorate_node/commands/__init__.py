"""Commands of the owner that only read and send on chain."""
