"""`quorate chain deploy|fund|relay|key|networks`: a market's contracts on a chain you choose."""

from quorate_runtime.process.command_table import program

_COMMANDS = "quorate_contracts.chain_cli.commands"
app = program(
    "chain",
    "Put a market's contracts on a chain.",
    {
        "deploy": f"{_COMMANDS}:deploy",
        "key": f"{_COMMANDS}:make_key",
        "fund": f"{_COMMANDS}:fund",
        "relay": f"{_COMMANDS}:relay",
        "networks": f"{_COMMANDS}:networks",
    },
)
