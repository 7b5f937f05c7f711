"""Compares the gas of paid steps with the snapshot `gas.json`, with a tolerance of 100.

`QUORATE_GAS_WRITE=1 pytest tests/contracts/test_gas.py` writes the snapshot after an intended
change. The difference is then visible in review.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.evm import Evm
from contracts.market import BOSS, CLASS, COORDINATOR, POSTER, key, market, peopled, planned
from contracts.trial import TRUTH, Trial
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import ZERO_HASH, Address, Amount

SNAPSHOT = Path(__file__).parent / "gas.json"
TOLERANCE = 100
RING = 256
C = COORDINATOR.address


def _deployment() -> dict[str, int]:
    evm = Evm.fresh()
    return {
        f"deploy {creation.name}": evm.create(creation, BOSS.address)
        for creation in planned(DEVNET).creations
    }


def _accounts() -> dict[str, int]:
    world = market()
    stakes, escrow, evm = world.contracts.stakes, world.contracts.escrow, world.evm
    world.provider(0)
    owner, client = world.fund(key("owner1")).address, world.fund(key("client0")).address
    register = stakes.register(key("op").address, key("pay").address, CLASS, CLASS, CLASS)
    return {
        "register": evm.send(owner, register).gas,
        "open_slots 1": evm.send(owner, stakes.open_slots(CLASS, 1)).gas,
        "open_slots 4 more": evm.send(owner, stakes.open_slots(CLASS, 4)).gas,
        "rotate_key": evm.send(owner, stakes.rotate_key(key("op2").address)).gas,
        "close_slot": evm.send(owner, stakes.close_slot(CLASS, 1)).gas,
        "deposit, first": evm.send(client, escrow.deposit(Amount(USD))).gas,
        "deposit, later": evm.send(client, escrow.deposit(Amount(USD))).gas,
        "allocate, first": evm.send(client, escrow.allocate(C, Amount(USD))).gas,
    }


def _announcement() -> dict[str, int]:
    world = peopled()
    addresses = ("/ip4/203.0.113.7/tcp/7701", "/dns4/market.example/tcp/7701")
    call = world.contracts.epochs.announce(C, CLASS, addresses)
    return {"announce two addresses": world.evm.send(POSTER.address, call).gas}


def _epochs() -> dict[str, int]:
    """Measures the steady state: the ring is in use, and vouchers and accounts exist already."""
    world = peopled()
    evm, epochs = world.evm, world.contracts.epochs
    clients = [key(f"client{i}") for i in range(3)]

    def tree(number: int, size: int) -> list[Leaf]:
        return [
            Leaf(i + 1, key(f"owner{i}").address, Amount(1000 * number), Amount(0), ZERO_HASH)
            for i in range(size)
        ]

    expires = evm.now + 86_400

    def place(number: int) -> int:
        return number if number == 1 else number + RING

    def post(number: int, size: int, vouchers: int, is_known: bool = False) -> int:
        signed = [
            world.voucher(client, number * USD // 2, expires=expires)
            for client in clients[:vouchers]
        ]
        known = (
            {client.address: evm.ask(epochs.session(C, client.address)) for client in clients}
            if is_known
            else {}
        )
        evm.travel(DEVNET.challenge_window)
        return evm.send(
            POSTER.address, epochs.post(C, place(number), build(tree(number, size)), signed, known)
        ).gas

    found = {"post, fresh ring, 3 vouchers": post(1, 8, 3)}
    first = build(tree(1, 8))
    for number in range(2, place(33)):
        evm.travel(1)
        evm.send(POSTER.address, epochs.post(C, number, first, []))
    found |= {"post, 3 vouchers with their sessions": post(33, 50, 3)}
    found["post, 0 vouchers"] = post(34, 50, 0)
    found["post, 1 voucher with its session"] = post(35, 50, 1)

    def claim(number: int, size: int, account: Address) -> int:
        evm.travel(DEVNET.challenge_window)
        return evm.send(
            BOSS.address, epochs.claim(C, place(number), *prove(tree(number, size), account))
        ).gas

    found["claim, first, 50 leaves"] = claim(35, 50, key("owner2").address)
    post(36, 50, 1)
    found["claim, 50 leaves"] = claim(36, 50, key("owner2").address)
    found["post, 1 voucher"] = post(37, 50, 1, True)
    found["post, 3 vouchers"] = post(38, 50, 3, True)
    evm.travel(DEVNET.challenge_window)
    (call,) = epochs.claim_all(C, place(38), tree(38, 50))
    found["claim of 50 together, first"] = evm.send(BOSS.address, call).gas
    post(39, 50, 3, True)
    evm.travel(DEVNET.challenge_window)
    (call,) = epochs.claim_all(C, place(39), tree(39, 50))
    found["claim of 50 together"] = evm.send(BOSS.address, call).gas
    post(40, 200, 1)
    found["claim, 200 leaves"] = claim(40, 200, key("owner2").address)
    return found


def _case(executions: int, providers: int) -> dict[str, int]:
    world = peopled(providers=providers)
    trial = Trial.opened(
        world, key("owner0").address, [key(f"client{i}") for i in range(executions)]
    )
    beacon = world.prove(trial.now.round)
    trial.draw()
    jurors = len(trial.jurors)
    trial.vote([TRUTH[:executions]] * jurors)
    trial.reveal([TRUTH[:executions]] * jurors)
    trial.decide()
    found = {
        f"case of {executions}, {jurors} jurors: {step}": gas for step, gas in trial.gas.items()
    }
    return found | {
        f"case of {executions}, {jurors} jurors: whole": sum(trial.gas.values()) + beacon,
        "beacon submit": beacon,
    }


def _measured() -> dict[str, int]:
    found: dict[str, int] = {}
    parts: list[Callable[[], dict[str, int]]] = [_deployment, _accounts, _announcement, _epochs]
    for part in parts:
        found |= part()
    for executions, providers in ((2, 9), (3, 9), (2, 5)):
        found |= _case(executions, providers)
    return found


def test_gas_is_what_the_snapshot_says() -> None:
    found = _measured()
    if os.environ.get("QUORATE_GAS_WRITE"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        pytest.skip("gas.json was written; look at the difference and run again")
    wanted = json.loads(SNAPSHOT.read_text())
    assert found.keys() == wanted.keys()
    off = {
        name: (wanted[name], gas)
        for name, gas in found.items()
        if abs(gas - wanted[name]) > TOLERANCE
    }
    assert not off, f"snapshot, now: {off}"
