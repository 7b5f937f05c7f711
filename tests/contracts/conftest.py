"""Counts the tests that ran on another chain than the usual one; see `evm`."""

from collections.abc import Iterator

import pytest

from contracts.evm import PY_EVM, chain_kind

USED = "transactions on a node"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Writes into a test's report how many transactions it sent to a node."""
    if chain_kind() == PY_EVM:
        yield
        return
    from contracts.web3_evm import History

    before = History.sent
    yield
    item.user_properties.append((USED, History.sent - before))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests passed on the chain, and how many of them sent it a transaction."""
    if chain_kind() == PY_EVM:
        return
    counts = {name: len(terminalreporter.stats.get(name, [])) for name in OUTCOMES}
    passed = terminalreporter.stats.get("passed", [])
    used = [dict(report.user_properties).get(USED, 0) for report in passed]
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    terminalreporter.section(f"contracts on {chain_kind()}")
    terminalreporter.line(
        f"{told}; {sum(map(bool, used))} of those that passed sent {sum(used)} transactions"
    )


OUTCOMES = ("passed", "failed", "error", "skipped")
