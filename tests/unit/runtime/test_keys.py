"""Tests the keystore: other tools can read its files, other users cannot, and nothing overwrites
them.
"""

import json
import os
from pathlib import Path

import pytest
from eth_account import Account

from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.units import Hash32
from quorate_runtime.keys import keystore_v3
from quorate_runtime.keys.keystore import Keystore, KeystoreError, read_passphrase_file

SECRET = Hash32(b"\x11" * 32)


@pytest.fixture
def keystore(tmp_path: Path) -> Keystore:
    return Keystore.at(tmp_path / "provider", "correct horse", DEVNET)


def test_keys_are_the_same_when_the_keystore_is_opened_again(keystore: Keystore) -> None:
    operator, payout = (
        keystore.create_account("operator"),
        keystore.create_account("payout", SECRET),
    )
    peer, box = keystore.create_peer(), keystore.create_box()
    again = Keystore.at(keystore.folder, "correct horse", DEVNET)
    assert again.account("operator").address == operator.address != payout.address
    assert again.account("payout").sign(bytes(32)) == payout.sign(bytes(32))
    assert again.peer().public == peer.public and again.box().public == box.public
    assert again.has("peer") and not again.has("session")


def test_eth_account_and_the_keystore_read_each_others_files(
    keystore: Keystore, tmp_path: Path
) -> None:
    keystore.create_account("operator", SECRET)
    tree = json.loads((keystore.folder / "operator.json").read_bytes())
    assert bytes(Account.decrypt(tree, "correct horse")) == SECRET
    assert "0x" + tree["address"] == Account.from_key(SECRET).address.lower()
    for kdf, rounds in (("scrypt", 4), ("pbkdf2", 3)):
        theirs = Account.encrypt(SECRET, "correct horse", kdf=kdf, iterations=rounds)
        path = keystore.folder / f"theirs{kdf}.json"
        path.touch(0o600)
        path.write_text(json.dumps(theirs))
        assert keystore.account(f"theirs{kdf}").address == bytes.fromhex(
            Account.from_key(SECRET).address[2:]
        )


def test_the_standards_test_vector_opens() -> None:
    """The vector "PBKDF2-SHA-256" of the web3 secret storage definition.

    The scrypt vector is left out: OpenSSL derives no scrypt key with r = 1 and n = 2^18.
    """
    vector = {
        "crypto": {
            "cipher": "aes-128-ctr",
            "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
            "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
            "kdf": "pbkdf2",
            "kdfparams": {
                "c": 262144,
                "dklen": 32,
                "prf": "hmac-sha256",
                "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
            },
            "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
        },
        "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
        "version": 3,
    }
    secret = keystore_v3.decrypt(json.dumps(vector).encode(), "testpassword")
    assert secret.hex() == "7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d"


def test_wrong_passphrase_and_changed_file_are_refused(keystore: Keystore) -> None:
    keystore.create_peer()
    with pytest.raises(KeystoreError, match="passphrase does not open"):
        Keystore.at(keystore.folder, "wrong", DEVNET).peer()
    path = keystore.folder / "peer.json"
    text = path.read_text()
    for broken in (
        "{}",
        "no json",
        text.replace("scrypt", "rot13"),
        text.replace('"n": 2', '"n": 1073741824'),
        "x" * 20_000,
    ):
        path.write_text(broken)
        with pytest.raises(KeystoreError):
            keystore.peer()


def test_file_that_other_users_can_read_is_refused_with_the_remedy(
    keystore: Keystore, tmp_path: Path
) -> None:
    keystore.create_account("operator")
    path = keystore.folder / "operator.json"
    assert path.stat().st_mode & 0o777 == 0o600 and keystore.folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(KeystoreError, match="chmod 600"):
            keystore.account("operator")
    passphrase = tmp_path / "password"
    passphrase.write_text("secret\n")
    passphrase.chmod(0o644)
    with pytest.raises(KeystoreError, match="chmod 600"):
        read_passphrase_file(passphrase)
    passphrase.chmod(0o400)
    assert read_passphrase_file(passphrase) == "secret"


def test_key_is_never_overwritten(keystore: Keystore) -> None:
    first = keystore.create_account("operator")
    with pytest.raises(KeystoreError, match="exists"):
        keystore.create_account("operator")
    assert keystore.account("operator").address == first.address
    assert os.listdir(keystore.folder) == ["operator.json"]


def test_missing_and_empty_files_are_named_in_the_error(keystore: Keystore, tmp_path: Path) -> None:
    with pytest.raises(KeystoreError, match="cannot be read"):
        keystore.account("operator")
    empty = tmp_path / "empty"
    empty.touch(0o600)
    with pytest.raises(KeystoreError, match="empty"):
        read_passphrase_file(empty)


@pytest.mark.rule("9.2")
def test_only_devnet_keys_are_cheap_to_open(tmp_path: Path) -> None:
    assert Keystore.at(tmp_path, "x", DEVNET).kdf.scrypt_n == 2
    assert Keystore.at(tmp_path, "x", MAINNET).kdf.scrypt_n == 262144


def test_passphrase_is_not_in_the_text_of_a_keystore(keystore: Keystore) -> None:
    assert "horse" not in repr(keystore) and "horse" not in str(keystore)
