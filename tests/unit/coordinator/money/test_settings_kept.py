"""Tests `coordinator init` in a folder that has a coordinator: it changes what it names."""

import json
from pathlib import Path

import pytest

from quorate_contracts import deploy
from quorate_contracts.deploy import Deployment
from quorate_coordinator.base import settings
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address, BlockNumber, Hash32, Seconds
from quorate_protocol.values import replace
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


def test_a_folder_with_a_journal_keeps_its_deployment(home: Path) -> None:
    file, old = home.parent / "other.json", str(home.parent / "deployment.json")
    file.write_bytes(deploy.encode(replace(DEPLOYMENT, genesis=Hash32(b"\x01" * 32))))
    assert init(home, "--deployment", str(file))[0] == 0, "it has not worked yet"
    assert init(home, "--deployment", old)[0] == 0
    (home / "journal").mkdir()
    status, said = init(home, "--deployment", str(file))
    assert status == 3 and "journal of another deployment; name a new folder" in said, said
    assert settings.read(home).deployment == DEPLOYMENT
    assert init(home, "--deployment", old, "--port", "7801")[0] == 0


@pytest.mark.parametrize(
    ("was", "now", "said", "is_made_again"),
    [
        ('"feeBps":150', '"feeBp":150', "unknown field 'feeBp'; correct it there", False),
        ('"feeBps":150', '"feeBps":"150"', "feeBps", False),
        ('"feeBps":150', '"feeBps":20000', "feeBps: 20000 is not between 0 and 2000", False),
        ("}", "", "not JSON", True),
    ],
)
def test_init_refuses_a_settings_file_that_cannot_be_read(
    home: Path, was: str, now: str, said: str, is_made_again: bool
) -> None:
    file = home / settings.FILE
    file.write_text(file.read_text().replace(was, now))
    before = file.read_bytes()
    for words in ((), ("--deployment", str(home.parent / "deployment.json"))):
        status, told = init(home, *words)
        assert status == 3 and str(file) in told and said in told, told
        assert ("move it away" in told) is is_made_again, told
    assert file.read_bytes() == before


def test_settings_that_an_editor_has_laid_out_are_read(home: Path) -> None:
    before, file = settings.read(home), home / settings.FILE
    file.write_text(json.dumps(json.loads(file.read_text()), indent=2))
    assert settings.read(home) == before


def test_two_keys_that_are_the_same_are_refused(home: Path) -> None:
    """With a leaked posting key nobody must be able to sign debt."""
    keys = home / "keys"
    posting = (keys / "posting.json").read_bytes()
    for name in ("statement", "account"):
        (keys / "posting.json").write_bytes((keys / f"{name}.json").read_bytes())
        status, told = init(home)
        assert status == 3 and f"{name}.json and posting.json hold the same key" in told, told
    (keys / "posting.json").unlink()
    assert init(home)[0] == 0 and (keys / "posting.json").read_bytes() != posting
