"""`python -m quorate_devnet up|demo|status` does the same as `quorate devnet`."""

from quorate_devnet.cli import app

app(prog_name="quorate devnet")
