"""Tests `coordinator retire` and `withdraw` from outside: who may do what, and wrong input."""

import asyncio
import fcntl
import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any, cast

import pytest

from quorate_contracts import deploy
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts, Deployment
from quorate_coordinator.api.http_server import check_port
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import Keystore
from support.cli_prompt import typed
from support.markets.coordinator_stage import Stage, running, until
from support.messages import a_spec

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
        ("6", 3, "there are 5.00 USD"),
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


@pytest.fixture
async def registered(stage: Stage, tmp_path: Path, word: Path) -> tuple[object, ...]:
    """Makes a registered coordinator with the stage's keys. Returns its options."""
    home, account = tmp_path / "market", stage.keys.account
    await made(stage, home, word, stage.deployment)
    shutil.rmtree(home / "keys")
    stage.make_keys(home, "a passphrase")
    c, keys = Contracts.of(stage.deployment), stage.keys
    bond = DEVNET.coordinator_bond
    register = c.stakes.register_coordinator(keys.statement.address, keys.posting.address)
    await stage.send(GIVER, c.token.mint(account.address, Amount(bond + 500 * USD)))
    await stage.send(account, c.token.approve(c.stakes.address, bond), register)
    return "--home", home, "--password-file", word


async def said_by(*words: object) -> dict[str, Any]:
    """Returns what a command prints with --json."""
    status, said = await command(*words, "--json")
    assert status == 0, said
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


async def test_capital_goes_in_works_within_limits_and_comes_out(
    stage: Stage, registered: tuple[object, ...]
) -> None:
    owner, wallet = "0x" + "0a" * 20, "0x" + "ab" * 20
    yes = (*registered, "--yes")
    assert (await said_by("deposit", "100", *yes))["balance"] == 100 * USD
    assert (await said_by("deposit", "20", "--accusations", *yes))["balance"] == 20 * USD
    limits = await said_by("limit", "--payroll", "50", *yes)
    assert limits["payroll"] == {"limit": 50 * USD, "moved": 0, "suggested": 20 * USD}
    locked = (await said_by("guarantee", owner, "--raise", "30", *yes))["guarantees"]
    assert locked == [{"provider": owner, "free": 30 * USD, "closesAt": 0}]
    facts = await said_by("balance", *registered)
    assert (facts["balance"], facts["locked"], facts["unpaid"]) == (70 * USD, 30 * USD, None)
    closing = (await said_by("guarantee", owner, "--close", *yes))["guarantees"]
    assert closing[0]["closesAt"] > time.time()
    stage.chain_clock.error += DEVNET.coordinator_close + 5
    assert (await said_by("guarantee", owner, "--finish", *yes))["guarantees"] == []
    assert (await said_by("payroll", *yes)) == {"paid": 0, "accounts": 0}
    before = (await said_by("balance", *registered))["account"]
    out = await said_by("withdraw", "--to", wallet, "--amount", str(before // USD + 40), *yes)
    assert out["sent"] == (before // USD + 40) * USD and out["takenOut"] >= 39 * USD
    status, said = await command("guarantee", "--close", *yes)
    assert status == 2 and "name a provider" in said


@pytest.mark.parametrize("name", ["statement", "posting"])
async def test_a_hot_key_is_replaced_and_nothing_is_closed(
    stage: Stage, registered: tuple[object, ...], name: str
) -> None:
    made_key = await said_by("swap-key", name, *registered, "--yes")
    stakes = Contracts.of(stage.deployment).stakes
    query = (stakes.operator_key if name == "statement" else stakes.posting_key)(stage.coordinator)
    known = await ask(ChainClient(Rpc(stage.chain_url, stage.session)), query)
    assert "0x" + known.hex() == made_key["address"] and Path(made_key["kept"]).exists()
    home = cast("Path", registered[1])
    opened = Keystore.at(home / "keys", "a passphrase", DEVNET).account(name)
    assert opened.address == known


async def test_a_retired_coordinator_takes_no_new_orders_and_says_so(
    stage: Stage, tmp_path: Path
) -> None:
    contracts = Contracts.of(stage.deployment)
    async with running(stage.service()) as service:

        async def view() -> dict[str, Any]:
            status, found = await stage.get(service.url, "operator")
            assert status == 200
            return found

        found = await until(view, lambda answer: answer["chain"]["checkedAt"] > 0)
        assert found["chain"]["bond"] == DEVNET.coordinator_bond, found
        await stage.send(stage.keys.account, contracts.stakes.exit())
        await until(view, lambda answer: answer["chain"]["retiredAt"] > 0)
        order = stage.submission(stage.client, a_spec("late"), 1, now=int(time.time()))
        async with stage.session.post(
            f"{service.url}/v1/orders", data=canonical.encode(order)
        ) as response:
            assert response.status == 501
            assert "has retired" in (await response.json())["detail"]
        async with stage.session.get(f"{service.url}/metrics") as response:
            assert "quorate_retired 1.0" in await response.text()


async def test_an_order_right_after_retire_is_refused(
    stage: Stage, registered: tuple[object, ...]
) -> None:
    home = cast("Path", registered[1])
    async with running(Service(replace(stage.service().config, home=home), stage.keys)) as service:
        await said_by("retire", *registered, "--yes")
        order = stage.submission(stage.client, a_spec("late"), 1, now=int(time.time()))
        async with stage.session.post(
            f"{service.url}/v1/orders", data=canonical.encode(order)
        ) as response:
            assert (response.status, "has retired" in await response.text()) == (501, True)


async def test_a_copy_of_a_running_coordinator_does_not_start(stage: Stage, tmp_path: Path) -> None:
    async with running(stage.service()) as service:
        assert service.chain_answered_at > time.time() - 5
        copy = replace(service.config, home=tmp_path / "copy", own_urls=(service.url,))
        with pytest.raises(Refused, match=f"another process serves .* at {service.url}; stop"):
            await Service(copy, stage.keys).run()
        stakes = Contracts.of(stage.deployment).stakes
        announced = f"/ip4/127.0.0.1/tcp/{int(service.url.rsplit(':', 1)[1]) + 1}"
        peer = Hash32(stage.keys.peer.public)
        call = stakes.announce(stage.coordinator, peer, announced.encode())
        await stage.send(stage.keys.posting, call)
        with pytest.raises(Refused, match="another process serves"):
            await Service(replace(copy, own_urls=()), stage.keys).run()


def test_a_taken_port_is_found_before_anything_is_paid() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)
