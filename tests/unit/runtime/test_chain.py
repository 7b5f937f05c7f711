"""Tests what is read of a chain without a node: depth, senders, and the keys of the devnet."""

from types import SimpleNamespace
from typing import Any

import pytest
from eth_account import Account

from quorate_contracts import deploy
from quorate_contracts.artifact import artifact
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.escrow import Locked
from quorate_coordinator.chain.contract_follower import ContractFollower
from quorate_coordinator.core.model import events as ev
from quorate_devnet.chain.accounts import FUNDED, MNEMONIC, dev_account, dev_address
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import ZERO_ADDRESS, Address, BlockNumber, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient
from quorate_runtime.chain.account_nonces import signer
from quorate_runtime.keys.bls import keygen, public_key
from quorate_runtime.process.health import chain_problem

BEACON = BeaconInfo(public_key(keygen(b"a beacon that nobody asks")), DEVNET.beacon_period, 1)
CONTRACTS = Contracts.of(
    deploy.plan(ZERO_ADDRESS, 0, 1, BlockNumber(0), DEVNET, BEACON, True).deployment
)
CLIENT, COORDINATOR = Address(b"c" * 20), Address(b"k" * 20)
IN_BLOCK = 5


def word(value: bytes | int) -> str:
    return (value.to_bytes(32, "big") if isinstance(value, int) else value.rjust(32, b"\0")).hex()


class Chain:
    """A chain node with `head` blocks. In block 5 a client locked 70."""

    def __init__(self, head: int) -> None:
        self.head, self.asked_at = head, []  # type: tuple[int, list[str]]

    async def read(self, method: str, *params: Any) -> Any:
        match method:
            case "eth_getBlockByNumber":
                number = self.head if params[0] == "latest" else int(params[0], 16)
                return self._block(number) if number <= self.head else None
            case "eth_getLogs":
                return [self._locked()] if self._names(params[0]) else []
            case "eth_call":
                self.asked_at.append(params[1])
                return "0x" + word(70) + word(0) * 3
        raise AssertionError(method)

    def _names(self, query: Any) -> bool:
        if "blockHash" in query:
            return bool(int(query["blockHash"], 16) == IN_BLOCK + 1)
        return int(query["fromBlock"], 16) <= IN_BLOCK <= int(query["toBlock"], 16)

    def _block(self, number: int) -> dict[str, str]:
        form = {
            "number": hex(number),
            "hash": "0x" + word(number + 1),
            "parentHash": "0x" + word(number),
            "timestamp": hex(number),
        }
        return {**form, "baseFeePerGas": "0x1"}

    def _locked(self) -> dict[str, Any]:
        topic = next(
            key for key, kind in artifact("Escrow").events.items() if kind.name == Locked.__name__
        )
        topics = ["0x" + topic.hex(), "0x" + word(CLIENT), "0x" + word(COORDINATOR)]
        place = {
            "blockNumber": hex(IN_BLOCK),
            "blockHash": "0x" + word(IN_BLOCK + 1),
            "transactionHash": "0x" + word(1),
            "logIndex": "0x0",
        }
        return {
            "address": "0x" + CONTRACTS.escrow.address.hex(),
            "topics": topics,
            "data": "0x" + word(70),
            **place,
        }


class Stopped(Exception):
    """The follower has nothing left to do and waits."""


class Waits:
    """A clock whose `sleep` ends the follower."""

    async def sleep(self, seconds: float) -> None:
        raise Stopped


async def notes(chain: Chain, depth: int) -> list[ev.ChainNote]:
    """Returns the events that a coordinator gets from a chain until it waits for the next block."""
    heard: list[ev.ChainNote] = []

    async def submit(event: ev.ChainAdvanced) -> None:
        heard.extend(event.notes)

    rules = SimpleNamespace(limits=replace(DEVNET, chain_depth=depth))
    core = SimpleNamespace(state=SimpleNamespace(blocks={}), rules=rules)
    client, actor = ChainClient(chain), SimpleNamespace(submit=submit)  # type: ignore[arg-type]
    watch = ContractFollower(client, CONTRACTS, COORDINATOR, core, actor, Waits())  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        await watch.run()
    return heard


async def test_deposit_counts_once_its_block_is_deep_enough() -> None:
    young = Chain(head=IN_BLOCK + 2)
    assert await notes(young, depth=4) == [] and not young.asked_at
    old = Chain(head=IN_BLOCK + 3)
    assert (await notes(old, depth=4))[:1] == [ev.ChainTabChanged(CLIENT, COORDINATOR, 70, 0, 0)]  # type: ignore[arg-type]
    assert set(old.asked_at) == {hex(IN_BLOCK)}, (
        "the follower asks for the state of an equally old block, not of the newest"
    )


async def test_after_a_long_absence_the_current_state_is_read() -> None:
    """A chain node keeps the state of a block for only about a hundred blocks."""
    chain = Chain(head=3000)
    assert len(await notes(chain, depth=4)) == 2, "the tab, and the balance with its limits"
    assert set(chain.asked_at) == {hex(2997)}


def test_mainnet_waits_for_depth_and_its_acks_are_still_young_enough() -> None:
    """Of the chains with EIP-2537, the slowest has a block every twelve seconds. Even there, slots
    at that depth are young enough for an Ack.
    """
    assert DEVNET.chain_depth == 1 and MAINNET.chain_depth == 32
    assert MAINNET.chain_depth * 12 < MAINNET.ack_age_max * 2 // 3


def test_health_allows_for_the_wait_for_deep_blocks() -> None:
    clock = SimpleNamespace(now=lambda: 1000.0)
    assert chain_problem(clock, UnixSeconds(1000 - 32 * 12), "", MAINNET.chain_depth) == ""  # type: ignore[arg-type]
    assert "old" in chain_problem(clock, UnixSeconds(1000 - 32 * 12), "", DEVNET.chain_depth)  # type: ignore[arg-type]
    assert "old" in chain_problem(clock, UnixSeconds(1), "", MAINNET.chain_depth)  # type: ignore[arg-type]


FIELDS = {
    "type": 2,
    "chainId": 31337,
    "nonce": 2,
    "maxPriorityFeePerGas": 1,
    "maxFeePerGas": 100,
    "gas": 250_000,
    "value": 0,
    "data": "0x6e55",
}


@pytest.mark.parametrize("to", ["0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0", None])
def test_a_transaction_as_nodes_show_it_names_its_signer(to: str | None) -> None:
    account = Account.from_key(b"\x11" * 32)
    receiver = {"to": bytes.fromhex(to[2:])} if to else {}
    signed = account.sign_transaction({**FIELDS, **receiver})
    numbers = {name: hex(value) for name, value in FIELDS.items() if isinstance(value, int)}
    shown = {
        **numbers,
        "to": to,
        "input": FIELDS["data"],
        "accessList": [],
        "r": hex(signed.r),
        "s": hex(signed.s),
        "yParity": hex(signed.v),
    }
    assert signer(shown) == bytes.fromhex(account.address[2:])


@pytest.mark.parametrize("index", [0, 1, 7, FUNDED - 1, 1_000, 2**31 - 1])
def test_keys_are_those_of_eth_account(index: int) -> None:
    Account.enable_unaudited_hdwallet_features()
    known = Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")
    assert dev_account(index) == bytes(known.key)
    assert dev_address(index) == bytes.fromhex(known.address[2:])
