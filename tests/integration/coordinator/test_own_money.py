"""Tests `coordinator retire` and `withdraw` from outside: who may do what, and wrong input."""

import asyncio
import dataclasses
import fcntl
import json
import shutil
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.fault_evidence import ack
from quorate_contracts import deploy
from quorate_contracts.chain_cli.relaying import Relay, read_file
from quorate_contracts.deploy import Contracts, Deployment
from quorate_coordinator import coordinator_keys
from quorate_coordinator.http_server import check_port
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import Keystore
from support.cli_prompt import typed
from support.markets.coordinator_stage import Stage, running, until
from support.markets.scripted_market import a_spec

GIVER = KeySigner(dev_account(9))


@pytest.fixture
def word(tmp_path: Path) -> Path:
    path = tmp_path / "word"
    path.touch(mode=0o600)
    path.write_text("a passphrase\n")
    return path


async def command(*words: object) -> tuple[int, str]:
    """Runs a command while this loop serves the chain."""
    return await asyncio.to_thread(typed, "coordinator", *(str(word) for word in words))


async def made(
    stage: Stage, home: Path, word: Path, deployment: Deployment, url: str = ""
) -> dict[str, str]:
    """Makes a coordinator's folder, and returns what `init --json` says."""
    file = home.parent / "deployment.json"
    file.write_bytes(deploy.encode(deployment))
    place = ("--chain-url", url or stage.chain_url, "--beacon-url", stage.beacon_url)
    status, said = await command(
        *("init", "--deployment", file, *place, "--port", 9),
        *("--home", home, "--password-file", word, "--json"),
    )
    assert status == 0, said
    facts: dict[str, str] = json.loads(said.splitlines()[-1])
    return facts


async def test_wrong_input_ends_with_a_sentence_and_sends_nothing(
    stage: Stage, tmp_path: Path, word: Path
) -> None:
    home = tmp_path / "market"
    facts = await made(stage, home, word, stage.deployment)
    opened = ("--home", home, "--password-file", word)
    wallet = "0x" + "ab" * 20
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("retire", *opened, "--yes"), 3, "never registered"),
        (("withdraw", *opened, "--to", "0xab"), 2, "40 hex digits"),
        (("withdraw", *opened, "--to", "0x" + "00" * 20), 2, "40 hex digits"),
        (("withdraw", *opened, "--everything"), 2, "--to ADDRESS"),
        (("withdraw", "--home", tmp_path / "none", "--to", wallet), 2, "init` first"),
        (("status", "--home", home), 4, "quorate coordinator up"),
    ]
    for words, status, sentence in cases:
        found, said = await command(*words)
        assert (found, sentence in said, "Traceback" in said) == (status, True, False), (
            words,
            said,
        )

    # The account holds tokens and no coins.
    account = Address(bytes.fromhex(facts["account"][2:]))
    token = Contracts.of(stage.deployment).token
    stage.home.mkdir(exist_ok=True)
    await stage.send(GIVER, token.mint(account, Amount(5 * USD)))
    for amount, status, sentence in (
        ("1.0000001", 2, "at most 6 decimals"),
        ("6", 3, "holds 5.00 USD"),
        ("-1", 2, "a number of USD"),
        ("5", 3, "send 0."),
    ):
        sent = ("withdraw", *opened, "--to", wallet, "--amount", amount, "--yes")
        found, said = await command(*sent)
        assert (found, sentence in said) == (status, True), (amount, said)
    found, said = await command("withdraw", *opened, "--to", wallet)
    assert found == 2 and "give --yes" in said

    with (home / "account.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found, said = await command("withdraw", *opened)
    assert found == 3 and "another command" in said

    await made(stage, home, word, stage.deployment, url="http://127.0.0.1:9")
    found, said = await command("retire", *opened, "--yes")
    assert found == 4 and "127.0.0.1:9" in said and "Repeat the command" in said
    await made(stage, home, word, replace(stage.deployment, chain_id=1))
    found, said = await command("retire", *opened, "--yes")
    assert found == 3 and "serves chain 31337" in said


@pytest.mark.rule("2.31")
async def test_a_bond_that_two_acks_cost_is_topped_up_once(
    stage: Stage, tmp_path: Path, word: Path
) -> None:
    home, account, statement = tmp_path / "market", stage.keys.account, stage.keys.statement
    await made(stage, home, word, stage.deployment)
    shutil.rmtree(home / "keys")
    keystore = Keystore.at(home / "keys", "a passphrase", DEVNET)
    for number, name in enumerate(coordinator_keys.NAMES, 1):
        keystore.create_account(name, dev_account(number))
    c, opened = Contracts.of(stage.deployment), ("--home", home, "--password-file", word)
    stage.home.mkdir(exist_ok=True)
    register = c.stakes.register_coordinator(statement.address, stage.keys.posting.address)
    await stage.send(account, c.token.approve(c.stakes.address), register)
    found, said = await command("top-up", *opened, "--yes")
    assert found == 0 and "no bond is missing" in said, said
    evm = SimpleNamespace(now=int(time.time()))
    world = cast("Any", SimpleNamespace(evm=evm, domain=stage.deployment.domain()))
    acks = [ack(world, Hash32(b"j" * 32), epoch, statement) for epoch in (1, 2)]
    await stage.send(GIVER, c.faults.two_acks(account.address, *acks))
    restored = f"{usd(DEVNET.coordinator_fault_penalty)} USD of bond restored"
    found, said = await command("top-up", *opened)
    assert found == 2 and "give --yes" in said
    for sentence in (restored, "no bond is missing"):
        found, said = await command("top-up", *opened, "--yes")
        assert found == 0 and sentence in said, said
    out = tmp_path / "requests.json"
    found, said = await command("request", *opened, "--yes", "--out", out)
    assert found == 3 and "the token has no permits" in said, said
    await stage.send(account, c.token.approve(c.stakes.address))
    found, said = await command("request", *opened, "--yes", "--out", out)
    assert found == 0 and "quorate chain relay" in said, said
    client = ChainClient(Rpc(stage.chain_url, stage.session))
    assert (await Relay(client, c, GIVER, str).send(read_file(out), None)).sent == 1
    found, said = await command("request", *opened, "--yes", "--out", out)
    assert found == 3 and "has retired" in said, said


async def test_a_retired_coordinator_takes_no_new_orders_and_says_so(
    stage: Stage, tmp_path: Path
) -> None:
    contracts = Contracts.of(stage.deployment)
    async with running(stage.service()) as service:

        async def view() -> dict[str, object]:
            async with stage.session.get(f"{service.url}/v1/operator") as response:
                assert response.status == 200
                return dict(await response.json())

        found = await until(view, lambda answer: answer["chain"]["checkedAt"] > 0)
        assert found["chain"]["bond"] == DEVNET.coordinator_bond, found
        await stage.send(stage.keys.account, contracts.stakes.retire_coordinator())
        await until(view, lambda answer: answer["chain"]["retiredAt"] > 0)
        order = stage.submission(stage.client, a_spec("late"), 1, now=int(time.time()))
        async with stage.session.post(
            f"{service.url}/v1/orders", data=canonical.encode(order)
        ) as response:
            assert response.status == 501
            assert "has retired" in (await response.json())["detail"]
        async with stage.session.get(f"{service.url}/metrics") as response:
            assert "quorate_retired 1.0" in await response.text()


async def test_a_copy_of_a_running_coordinator_does_not_start(stage: Stage, tmp_path: Path) -> None:
    async with running(stage.service()) as service:
        assert service.chain_answered_at > time.time() - 5
        copy = dataclasses.replace(service.config, home=tmp_path / "copy", own_urls=(service.url,))
        with pytest.raises(Refused, match=f"another process serves .* at {service.url}; stop"):
            await Service(copy, stage.keys).run()
        epochs = Contracts.of(stage.deployment).epochs
        announced = f"/ip4/127.0.0.1/tcp/{int(service.url.rsplit(':', 1)[1]) + 1}"
        peer = Hash32(stage.keys.peer.public)
        call = epochs.announce(stage.coordinator, peer, [announced])
        await stage.send(stage.keys.posting, call)
        with pytest.raises(Refused, match="another process serves"):
            await Service(dataclasses.replace(copy, own_urls=()), stage.keys).run()


def test_a_taken_port_is_found_before_anything_is_paid() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)
