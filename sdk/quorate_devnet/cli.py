"""The commands `quorate devnet up|down|demo|...`: a whole market on this machine."""

from quorate_runtime.process.command_table import program

app = program(
    "devnet",
    "A whole market on this machine, for trials and for tests.",
    {
        name: (
            f"quorate_devnet.{'chain_command' if name == 'chain' else 'commands'}:"
            f"{name.replace('-', '_')}"
        )
        for name in ("up", "down", "demo", "demo-rent", "chain", "status", "deploy", "fund")
    },
)
