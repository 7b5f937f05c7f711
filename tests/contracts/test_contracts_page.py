"""Tests that docs/operate/contracts.md names every function of every contract, and who may call it.

It also holds what the page promises: no upgrade, no pause, no money out of nothing.
"""

import re
from pathlib import Path

import pytest

from quorate_contracts.artifact import CONTRACTS, artifact
from quorate_contracts.compile import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "contracts.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))
CHECKS = ("assert msg.sender ==", "== msg.sender,", "assert msg.sender in", "_only_poster(")
PAIRS = {"[COURT, FAULTS]": ["Court", "Faults"], "[COURT, JOBS]": ["Court", "Jobs"]}
NAMES_OF_POWER = re.compile(r"upgrade|pause|owner$|admin|govern|set_|sweep|rescue|mint|blacklist")
OWN = {("TestToken", "mint"), ("Escrow", "set_limits")}  # of a test token; of the sender's own keys
CODE_OF_POWER = ("is_delegate_call", "selfdestruct", "create_", "raw_create")


def rows(name: str) -> dict[str, str]:
    """Who may call each function that changes something, as the page says."""
    found: dict[str, str] = {}
    for functions, who in re.findall(r"^\| (`.*?) \| (.*?) \|", SECTIONS[name], re.M):
        for function in re.findall(r"`(\w+)`", functions):
            assert function not in found, f"{name}.{function} is there twice"
            found[function] = who
    return found


def functions(name: str) -> dict[str, bool]:
    """Every external function, and whether it changes something."""
    entries = [dict(each) for each in artifact(name).abi if each["type"] == "function"]  # type: ignore[arg-type,index,call-overload]
    return {each["name"]: each["stateMutability"] not in ("view", "pure") for each in entries}


def body(name: str, function: str) -> str:
    """The source of a function, and of the functions that it calls in the same file."""
    for file in artifact(name).sources:
        source = (SOURCES / file).read_text()
        if found := source_of(source, function):
            called = re.findall(r"self\.(_\w+)\(", found)
            return "\n".join([found, *(source_of(source, each) for each in called)])
    raise AssertionError(f"no source of {name}.{function}")


def source_of(source: str, function: str) -> str:
    """One function of a file; "" if it is not there."""
    found = re.search(rf"^def {function}\(.*?(?=^@|^def |\Z)", source, re.S | re.M)
    return found[0] if found else ""


@pytest.mark.rule("6.32")
@pytest.mark.parametrize("name", CONTRACTS)
def test_the_page_names_every_function_and_no_other(name: str) -> None:
    changing = {each for each, is_changing in functions(name).items() if is_changing}
    assert set(rows(name)) == changing, f"docs/operate/contracts.md, {name}: add or remove rows"
    reads = SECTIONS[name].partition("Read by anybody: ")[2]
    assert set(re.findall(r"`(\w+)`", reads)) == functions(name).keys() - changing, name


@pytest.mark.rule("6.32")
@pytest.mark.parametrize("name", CONTRACTS)
def test_who_may_call_what_is_what_the_source_checks(name: str) -> None:
    for function, who in rows(name).items():
        text = body(name, function)
        if who == "anybody":
            assert not any(check in text for check in CHECKS), (
                f"{name}.{function} checks its sender"
            )
        elif who.startswith("only "):
            named = re.findall(r"`(\w+)`", who)
            pairs = [pair for pair in PAIRS if f"assert msg.sender in {pair}," in text]
            assert [PAIRS[pair] for pair in pairs] == [named], f"{name}.{function}: {who}"
        elif who == "the posting key":
            checks = "_only_poster(" in text or "posting_key[coordinator] == msg.sender" in text
            assert checks, f"{name}.{function}"
        elif (name, function) != ("TestToken", "mint"):
            assert "msg.sender" in text, f"{name}.{function}: {who}"


def test_the_modules_that_may_take_stake_are_these_two() -> None:
    source = (SOURCES / "Stakes.vy").read_text()
    assert "assert msg.sender in [COURT, FAULTS]" in source


@pytest.mark.rule("6.32")
def test_nobody_can_upgrade_pause_or_mint() -> None:
    for name in CONTRACTS:
        for function in functions(name):
            if (name, function) not in OWN:
                assert not NAMES_OF_POWER.search(function), f"{name}.{function}"
        for file in artifact(name).sources:
            text = (SOURCES / file).read_text()
            assert not [word for word in CODE_OF_POWER if word in text], file
    assert 'assert FAUCET, "faucet"' in body("TestToken", "mint")
