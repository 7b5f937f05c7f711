"""`python -m quorate_devnet up|demo|status`: as `quorate devnet`."""

from quorate_devnet.cli import app

app(prog_name="quorate devnet")
