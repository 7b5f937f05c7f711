"""Tests beacon rounds that are proven on chain, signed by the local key and by drand's key."""

from dataclasses import replace

import pytest
from eth.vm.forks.cancun import CancunVM

from contracts.evm import Evm, PyEvm, Reverted, _Chain, only_py_evm, refused
from contracts.market import BOSS, CHAIN_ID, SECRET, market, planned
from quorate_contracts import deploy
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import round_proof
from quorate_contracts.generated.beacon import Beacon, RoundProven
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.messages.ports import BeaconInfo, BeaconRound
from quorate_protocol.units import BlockNumber, Round, UnixSeconds
from quorate_runtime.keys.bls import beacon_round, keygen, randomness

QUICKNET_KEY = bytes.fromhex(
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
QUICKNET_GENESIS = 1_692_803_367
QUICKNET_ROUND = 657_413
QUICKNET_SIGNATURE = bytes.fromhex(
    "b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b"
)


def submitted(beacon: Beacon, proven: BeaconRound) -> Call:
    return beacon.submit(proven.round, round_proof(proven))


@pytest.mark.parametrize("number", [1, 2, 7, 1000, 2**40])
def test_randomness_is_the_hash_of_the_compressed_signature(number: int) -> None:
    world = market()
    beacon, made = world.contracts.beacon, beacon_round(SECRET, Round(number))
    event = world.evm.send(BOSS.address, submitted(beacon, made)).events[0]
    assert event == RoundProven(Round(number), made.randomness)  # type: ignore[arg-type]
    assert world.evm.ask(beacon.randomness(Round(number))) == made.randomness
    assert world.evm.send(BOSS.address, submitted(beacon, made)).events == ()


@pytest.mark.rule("5.144")
def test_a_published_round_of_quicknet_is_accepted() -> None:
    info = BeaconInfo(QUICKNET_KEY, MAINNET.beacon_period, QUICKNET_GENESIS)
    evm, made = (
        Evm.fresh(),
        deploy.plan(BOSS.address, 0, CHAIN_ID, BlockNumber(1), MAINNET, info, True),
    )
    for creation in made.creations[:5]:
        evm.create(creation, BOSS.address)
    evm.contracts = Contracts.of(made.deployment)
    published = BeaconRound(
        Round(QUICKNET_ROUND), QUICKNET_SIGNATURE, randomness(QUICKNET_SIGNATURE)
    )
    evm.send(BOSS.address, submitted(evm.contracts.beacon, published))
    assert evm.ask(evm.contracts.beacon.randomness(Round(QUICKNET_ROUND))) == published.randomness


@pytest.mark.rule("5.144")
def test_signatures_of_other_rounds_and_keys_are_refused() -> None:
    world = market()
    beacon = world.contracts.beacon
    good = beacon_round(SECRET, Round(9))
    refused(
        world.evm,
        "signature",
        BOSS.address,
        submitted(beacon, BeaconRound(Round(10), good.signature, good.randomness)),
    )
    other = beacon_round(keygen(b"some other beacon key"), Round(9))
    refused(world.evm, "signature", BOSS.address, submitted(beacon, other))
    refused(world.evm, "point", BOSS.address, beacon.submit(Round(9), bytes(127)))
    with pytest.raises(Reverted):
        world.evm.send(BOSS.address, beacon.submit(Round(9), bytes(63) + b"\x01" + bytes(64)))
    infinity = bytes(128)
    refused(world.evm, "signature", BOSS.address, beacon.submit(Round(9), infinity))


def test_rounds_appear_as_python_says() -> None:
    world = market()
    beacon, info = world.contracts.beacon, world.contracts.deployment.beacon_info()
    for offset in (-5, -1, 0, 1, 2, 3, 19, 20, 21):
        moment = UnixSeconds(info.genesis_time + offset)
        assert world.evm.ask(beacon.round_at(moment)) == round_at(info, moment)
        first = world.evm.ask(beacon.first_round_from(moment))
        stamp = info.genesis_time + (first - 1) * info.period
        assert stamp >= moment and (first == 1 or stamp - info.period < moment)


class OldChain(_Chain):
    """A chain with rules from before the functions of the curve."""

    vm_configuration = ((0, CancunVM),)


@only_py_evm("rules of an older fork")
@pytest.mark.rule("0.5")
def test_a_beacon_is_not_made_on_a_chain_without_the_curve() -> None:
    """On such a chain no round could be proven, so no jury could be drawn."""
    fresh = PyEvm.made()
    old = replace(fresh, chain=OldChain(fresh.chain.chaindb.db, fresh.chain.get_canonical_head()))
    for creation in planned(DEVNET).creations:
        if creation.name == "Beacon":
            with pytest.raises(Reverted, match="EIP-2537"):
                old.create(creation, BOSS.address)
            return
        old.create(creation, BOSS.address)
    raise AssertionError("a deployment has a beacon")
