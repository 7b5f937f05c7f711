"""`quorate coordinator ...`: the operator's commands."""

from quorate_runtime.process.command_table import program

_CLI = "quorate_coordinator.cli"
app = program(
    "coordinator",
    "Run the matching service: offers, audits, settlement.",
    {
        "init": f"{_CLI}.init:init",
        "health": f"{_CLI}.status_command:health",
        "status": f"{_CLI}.status_command:status",
        "deposit": f"{_CLI}.capital_commands:deposit",
        "balance": f"{_CLI}.capital_commands:balance",
        "limit": f"{_CLI}.capital_commands:limit",
        "guarantee": f"{_CLI}.capital_commands:guarantee",
        "payroll": f"{_CLI}.capital_commands:payroll",
        "swap-key": f"{_CLI}.swap_key_command:swap_key",
        "accuse": f"{_CLI}.accuse_command:accuse",
        "retire": f"{_CLI}.money_commands:retire",
        "withdraw": f"{_CLI}.money_commands:withdraw",
        "top-up": f"{_CLI}.bond_commands:top_up",
        "request": f"{_CLI}.bond_commands:request",
        "unlock": f"{_CLI}.keys:unlock",
        "lock": f"{_CLI}.keys:lock",
        "backup": f"{_CLI}.backup_commands:backup",
        "restore": f"{_CLI}.backup_commands:restore",
        "up": f"{_CLI}.up:up",
        "report": f"{_CLI}.report_command:report",
    },
)
