"""Tests `coordinator init` in a folder that has a coordinator: it changes what it names."""

import json
from pathlib import Path

import pytest

from quorate_contracts import deploy
from quorate_contracts.deploy import Deployment
from quorate_coordinator.base import settings
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address, BlockNumber, Seconds
from support.cli_prompt import typed

PLACES = tuple(Address(bytes([index]) * 20) for index in range(1, 8))
DEPLOYMENT = Deployment(31337, BlockNumber(0), DEVNET.name, *PLACES, bytes(96), Seconds(2), 1)
URLS = ("--chain-url", "http://127.0.0.1:1", "--beacon-url", "http://127.0.0.1:2")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A coordinator's folder, made with settings that differ from the defaults."""
    word, deployment = tmp_path / "word", tmp_path / "deployment.json"
    word.touch(mode=0o600)
    word.write_text("a passphrase\n")
    deployment.write_bytes(deploy.encode(DEPLOYMENT))
    status, said = init(
        tmp_path / "market",
        *("--deployment", str(deployment), *URLS, "--port", "7800", "--fee-bps", "150"),
        *("--metrics-from", "10.0.0.0/8", "--public-url", "https://market.example"),
    )
    assert status == 0 and "1000.00" in said, said
    return tmp_path / "market"


def init(home: Path, *words: str) -> tuple[int, str]:
    """Types `coordinator init` for a folder."""
    at = ("--home", str(home), "--password-file", str(home.parent / "word"))
    return typed("coordinator", "init", *words, *at)


def test_a_second_init_changes_what_it_names_and_says_so(home: Path) -> None:
    before = settings.read(home)
    keys = {path.name: path.read_bytes() for path in (home / "keys").iterdir()}
    status, said = init(home, "--chain-url", "http://127.0.0.1:3")
    assert status == 0
    assert "chain-url http://127.0.0.1:3" in said and "port" not in said, said
    assert "up --home" in said and "again if it runs" in said and "status" in said, said
    assert "made" not in said and "needs" not in said, said
    after = settings.read(home)
    assert settings.differences(before, after) == ["chain-url"]
    assert keys == {path.name: path.read_bytes() for path in (home / "keys").iterdir()}

    status, said = init(home, "--metrics-from", "192.0.2.0/24", "--port", "7801", "--json")
    assert (status, json.loads(said)["changed"]) == (0, ["port", "metrics-from"])
    status, said = init(home)
    assert status == 0 and "Nothing changed" in said


def test_two_chain_nodes_are_named_together(home: Path) -> None:
    status, said = init(home, "--rpc", "http://127.0.0.1:8", "--rpc", "http://127.0.0.1:9/")
    after = settings.read(home)
    assert status == 0, said
    assert (after.chain_url, after.second_chain_url) == ("http://127.0.0.1:8", "http://127.0.0.1:9")
    init(home, "--port", "7801")
    assert settings.read(home).second_chain_url == "http://127.0.0.1:9"
    init(home, "--chain-url", "http://127.0.0.1:8")
    assert not settings.read(home).second_chain_url
    status, said = init(home, "--rpc", "http://127.0.0.1:8", "--rpc", "http://127.0.0.1:8")
    assert status == 2 and "two of different operators" in said, said


def test_a_devnet_file_names_its_nodes_too(home: Path) -> None:
    file = home.parent / "devnet.json"
    tree = json.loads((home.parent / "deployment.json").read_bytes())
    named = {"chainUrl": "http://127.0.0.1:4", "beaconUrl": "http://127.0.0.1:5"}
    file.write_text(json.dumps({"deployment": tree, **named}))
    status, said = init(home, "--devnet", str(file))
    assert status == 0, said
    after = settings.read(home)
    assert (after.chain_url, after.beacon_url, after.port) == (*named.values(), 7800)


def test_a_new_folder_needs_a_deployment(tmp_path: Path) -> None:
    status, said = init(tmp_path / "none", "--port", "7800")
    assert status == 2 and "--deployment" in said and "--devnet" in said, said
