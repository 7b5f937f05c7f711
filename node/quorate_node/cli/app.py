"""`quorate node ...`: the commands of a provider."""

from quorate_runtime.process.command_table import program

_CLI = "quorate_node.cli"
app = program(
    "node",
    "Run the provider: check the machine, stake, execute jobs, earn.",
    {
        "init": f"{_CLI}.init:init",
        "check": f"{_CLI}.daemon:check",
        "selftest": f"{_CLI}.selftest:selftest_command",
        "up": f"{_CLI}.daemon:up",
        "health": f"{_CLI}.control:health",
        "status": f"{_CLI}.status:status",
        "pause": f"{_CLI}.control:pause",
        "resume": f"{_CLI}.control:resume",
        "drain": f"{_CLI}.control:drain",
        "price": f"{_CLI}.control:price",
        "evict": f"{_CLI}.control:evict",
        "withdraw": f"{_CLI}.money:withdraw",
        "leave": f"{_CLI}.money:leave",
        "settle": f"{_CLI}.settle_command:settle",
        "top-up": f"{_CLI}.money:top_up",
        "request": f"{_CLI}.request_command:request",
        "rotate": f"{_CLI}.keys:rotate",
        "unlock": f"{_CLI}.keys:unlock",
        "lock": f"{_CLI}.keys:lock",
    },
)
