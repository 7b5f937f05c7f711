"""The client's commands: where each is, and its line in `quorate --help`.

A command's module is imported when the command is used, so that each start loads only one of them.
"""

from dataclasses import dataclass

RUNS, RENTALS, MARKET = "Runs", "Rentals", "Market"
PROFILE, TOOLS = "Profile and money", "Tools"
PROGRAMS = "Programs"


@dataclass(frozen=True, slots=True)
class Row:
    """One command or group: `target` is MODULE:NAME of a function or of a typer application."""

    name: str
    target: str
    summary: str
    section: str
    is_hidden: bool = False


ROWS = (
    Row("run", "quorate.cli.jobs:run", "Run a command in an image.", RUNS),
    Row("apply", "quorate.cli.jobs:apply", "Run a job file.", RUNS),
    Row("plan", "quorate.cli.jobs:plan", "Show what a job file would cost.", RUNS),
    Row("validate", "quorate.cli.jobs:validate", "Check a job file without network.", RUNS),
    Row("check", "quorate.cli.check:check", "Try a job file twice on this machine.", RUNS),
    Row("rent", "quorate.cli.rent:rent", "Rent a machine by the minute.", RENTALS),
    Row("shell", "quorate.cli.ways_in:shell", "Open a shell in a rental.", RENTALS),
    Row("cp", "quorate.cli.ways_in:cp", "Copy files into a rental or out.", RENTALS),
    Row("forward", "quorate.cli.ways_in:forward", "Reach ports of a rental.", RENTALS),
    Row("jupyter", "quorate.cli.ways_in:jupyter", "Open Jupyter in a rental.", RENTALS),
    Row("ssh-config", "quorate.cli.ways_in:ssh_config", "Let plain ssh reach rentals.", RENTALS),
    Row("extend", "quorate.cli.rent:extend", "Pay a rental ahead.", RENTALS),
    Row("keep", "quorate.cli.rent:keep", "Let a rental go on meanwhile.", RENTALS),
    Row("serve", "quorate.cli.serving:serve", "Serve something from rented machines.", RENTALS),
    Row("keys", "quorate.cli.keys:keys_app", "Keys of your services.", RENTALS),
    Row("mcp", "quorate.cli.mcp:mcp", "Let an agent rent sandboxes.", RENTALS),
    Row("stream", "quorate.cli.ways_in:stream", "Carry ssh.", RENTALS, is_hidden=True),
    Row("ps", "quorate.cli.runs:ps", "List your runs.", RUNS),
    Row("logs", "quorate.cli.runs:logs", "Print what a program wrote.", RUNS),
    Row("events", "quorate.cli.runs:events", "Print the history of a run.", RUNS),
    Row("describe", "quorate.cli.runs:describe", "Print all details of a run.", RUNS),
    Row("get", "quorate.cli.runs:get", "Wait for a run, check it and fetch its output.", RUNS),
    Row("attach", "quorate.cli.runs:attach", "Follow a run to its end.", RUNS),
    Row("stop", "quorate.cli.runs:stop", "Stop runs now.", RUNS),
    Row("cancel", "quorate.cli.runs:stop", "Stop runs now.", RUNS, is_hidden=True),
    Row("offers", "quorate.cli.offers:offers", "List what is on offer.", MARKET),
    Row("offer", "quorate.cli.offers:offers", "List what is on offer.", MARKET, is_hidden=True),
    Row("pools", "quorate.cli.setup:pools", "List the pools and their owners.", MARKET),
    Row("market", "quorate.cli.market_history:market", "Show past prices and volume.", MARKET),
    Row(
        "reputation",
        "quorate.cli.reputation:reputation",
        "Compute reputations from signed logs.",
        MARKET,
    ),
    Row("init", "quorate.cli.setup:init", "Make a client profile.", PROFILE),
    Row("unlock", "quorate.cli.unlocking:unlock", "Type the passphrase once for hours.", PROFILE),
    Row("lock", "quorate.cli.unlocking:lock", "Ask for the passphrase again.", PROFILE),
    Row("deposit", "quorate.cli.setup:deposit", "Deposit stablecoin for many jobs.", PROFILE),
    Row("balance", "quorate.cli.money:balance", "Show where your money is.", PROFILE),
    Row("lead", "quorate.cli.money:lead", "Set what you pay before results.", PROFILE),
    Row("withdraw", "quorate.cli.money:withdraw", "Take your money back.", PROFILE),
    Row("reclaim", "quorate.cli.money:reclaim", "Take an order's own escrow back.", PROFILE),
    Row("spend", "quorate.cli.runs:spend", "Print what this profile has spent.", PROFILE),
    Row("verify", "quorate.cli.verifying:verify", "Check a receipt or a settlement.", TOOLS),
    Row("image", "quorate.cli.images:image_app", "Build and check images.", TOOLS),
    Row("data", "quorate.cli.data:data_app", "Keep and serve content by its CID.", TOOLS),
    Row(
        "completion",
        "quorate.cli.completion:completion",
        "Print a script that completes commands in your shell.",
        TOOLS,
    ),
    Row("exit-codes", "quorate.cli.setup:exit_codes", "List all exit codes.", TOOLS),
)
BY_NAME = {row.name: row for row in ROWS}
PLUGINS = {
    "chain": "Put a market's contracts on a chain.",
    "node": "Run the provider: check the machine, stake, execute jobs, earn.",
    "coordinator": "Run the matching service: offers, audits, settlement.",
    "devnet": "Run a whole market on this machine, for trials and for tests.",
}
"""The lines of this distribution's own programs, whose modules `quorate --help` does not load."""
