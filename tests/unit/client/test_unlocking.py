"""Tests that the agent signs without a passphrase, and that reading a profile opens no key."""

import json
from pathlib import Path

import pytest

from quorate.base.errors import ProfileError
from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate.client.base.locked_profile import is_open, open_locked
from quorate.client.base.profile import change_coordinator, create_profile, read_settings
from quorate.client.base.session import FILE, ClientSession, keep_token, kept_token
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys import key_agent, unlock_command
from quorate_runtime.keys.crypto import recover
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.locked_keys import LockedKeys
from support.cli_prompt import password_file

DIGEST = Hash32(b"\7" * 32)


def nobody_types() -> str:
    raise AssertionError("the passphrase was asked for")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_profile(tmp_path / "home", "http://127.0.0.1:7700", "secret", "devnet")
    return tmp_path / "home"


def test_a_locked_profile_knows_its_address_and_asks_once(home: Path) -> None:
    asked = []

    def type_it() -> str:
        asked.append("secret")
        return "secret"

    profile = open_locked(home, type_it)
    assert not is_open(profile.account) and not asked
    assert recover(DIGEST, profile.account.sign(DIGEST)) == profile.account.address
    assert recover(DIGEST, profile.session.sign(DIGEST)) == profile.session.address
    assert asked == ["secret"] and is_open(profile.account)
    with pytest.raises(ProfileError, match="passphrase does not open"):
        open_locked(home, lambda: "other").account.sign(DIGEST)


def test_an_agent_signs_until_it_is_locked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(home), "--password-file", str(password_file(tmp_path))]
    assert run_main(["unlock", "--for", "5m", "--json", *words]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["home"] == str(home)
    try:
        assert (home / "keys" / key_agent.SOCKET).stat().st_mode & 0o077 == 0
        profile = open_locked(home, nobody_types)
        assert recover(DIGEST, profile.account.sign(DIGEST)) == profile.account.address
        assert recover(DIGEST, profile.session.sign(DIGEST)) == profile.session.address
    finally:
        assert run_main(["lock", "--json", *words]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {"wasUnlocked": True}
    assert key_agent.agent_of(home / "keys") is None
    assert not (home / "keys" / key_agent.SOCKET).exists()


def test_a_wrong_passphrase_starts_no_agent(home: Path) -> None:
    with pytest.raises(KeystoreError, match="passphrase does not open"):
        key_agent.start(home / "keys", ("account",), "other", 60)
    assert key_agent.agent_of(home / "keys") is None


def test_the_keys_of_a_daemon_are_opened_at_the_first_signature(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    store = Keystore.at(keys, "secret", DEVNET)
    addresses = [store.create_account(name).address for name in ("account", "posting")]
    locked = LockedKeys(keys, nobody_types)
    assert [locked.signer(name).address for name in ("account", "posting")] == addresses
    with pytest.raises(AssertionError, match="was asked for"):
        locked.signer("account").sign(DIGEST)
    told = unlock_command.unlock(keys, ("account", "posting"), lambda: "secret", "5m", False)
    assert told.startswith("unlocked until")
    try:
        for name, address in zip(("account", "posting"), addresses, strict=True):
            assert recover(DIGEST, locked.signer(name).sign(DIGEST)) == address
    finally:
        assert unlock_command.lock(keys, False) == "locked"
    asked: list[str] = []
    typed = LockedKeys(keys, lambda: asked.append("") or "secret")
    for name in ("account", "posting"):
        typed.signer(name).sign(DIGEST)
    assert len(asked) == 1
    for span in ("0h", "8d", "8", "soon"):
        with pytest.raises(Refused, match="--for"):
            unlock_command.span_seconds(span)


def test_a_read_whose_token_has_expired_asks_for_no_passphrase(home: Path) -> None:
    profile = open_locked(home, nobody_types)
    session = ClientSession(None, profile, None, SystemClock(), may_ask=False)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match="quorate unlock"):
        session.sign_in()


def test_a_token_is_kept_for_its_account_and_coordinator_only(home: Path) -> None:
    profile, someone = open_locked(home, nobody_types), Address(b"\1" * 20)
    contracts = (someone, someone, 1, someone, someone, someone)
    identity = CoordinatorIdentity(*contracts, b"\0" * 96, 2, 1, "devnet")
    keep_token(home, profile.account.address, identity, ("token", 5.0))
    assert (home / FILE).stat().st_mode & 0o077 == 0
    assert kept_token(home, profile.account.address, identity) == ("token", 5.0)
    assert kept_token(home, profile.session.address, identity) == ("", 0.0)
    (home / FILE).write_text("{")
    assert kept_token(home, profile.account.address, identity) == ("", 0.0)


def test_init_again_changes_the_coordinator_until_the_profile_has_met_one(home: Path) -> None:
    before = read_settings(home)
    assert change_coordinator(home, "http://127.0.0.1:1234", "devnet")
    assert read_settings(home) == before | {"coordinator": "http://127.0.0.1:1234"}
    assert not change_coordinator(home, "http://127.0.0.1:1234", "mainnet")
    (home / "pins.json").write_text("{}")
    assert not change_coordinator(home, "http://127.0.0.1:4321", "devnet")
