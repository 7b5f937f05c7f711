"""The commands `quorate devnet up|down|demo|status|deploy|fund`: a whole market on this machine."""

from quorate_runtime.process.command_table import program

app = program(
    "devnet",
    "A whole market on this machine, for trials and for tests.",
    {
        name: f"quorate_devnet.commands:{name}"
        for name in ("up", "down", "demo", "status", "deploy", "fund")
    },
)
