"""Names the extra of the distribution that a missing package belongs to."""

EXTRA_OF = {
    "docker": "node",
    "pynvml": "node",
    "prometheus_client": "node",
    "sqlalchemy": "coordinator",
    "alembic": "coordinator",
    "aiosqlite": "coordinator",
    "greenlet": "coordinator",
    "asyncpg": "postgres",
    "eth": "devnet",
    "eth_tester": "devnet",
    "numpy": "attest",
    "libp2p": "p2p",
    "multiaddr": "p2p",
    "trio": "p2p",
    "cuda": "cuda12",
}
"""Package as it is imported -> the extra that installs it."""
PROGRAMS = ("node", "coordinator", "devnet")
SPECIAL = ("postgres", "p2p", "cuda12")
"""Extras that no program needs always, so a missing package of theirs names them."""


def explain_missing(error: ImportError, words: list[str]) -> str:
    """Returns what to install for a command line, or "" if the package is of no extra."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package, "")
    if not extra:
        return ""
    program = next((word for word in words if word in PROGRAMS), "")
    wanted = program if program and extra not in SPECIAL else extra
    typed = f"quorate {program}" if program else "this command"
    return f"{typed} needs {package}, which is not installed; run pip install 'quorate[{wanted}]'"
