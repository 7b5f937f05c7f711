"""Tests that the devnet chain, eth-tester and anvil answer plain web3.py alike.

The tests cover deployment, money, logs, receipts, reverts, fees and nonces. What programs do with
the contracts works on each chain.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from eth_tester.exceptions import TransactionFailed
from eth_utils.exceptions import ValidationError
from web3.exceptions import BlockNotFound, ContractLogicError, TransactionNotFound

from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.stakes import Announced
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.bls import words_bytes
from support.chain.web3_nodes import Web3Node, web3_node

KINDS = ["devnet", "eth-tester", pytest.param("anvil", marks=pytest.mark.anvil)]
CLIENT, COORDINATOR = 0, 1  # development accounts
NOBODY = "0x" + "00" * 20


@dataclass
class Market:
    """The contracts on one chain, and a web3 contract object for each."""

    node: Web3Node
    deployment: Deployment

    def contract(self, name: str) -> Any:
        return self.deployment.contract(self.node.w3, name)

    async def fund(self) -> list[Any]:
        """A coordinator registers; a client mints, approves, deposits and locks. The receipts of
        the client's four transactions.
        """
        token, escrow, stakes = (self.contract(n) for n in ("TestToken", "Escrow", "Stakes"))
        client, other = (self.node.account(index).address for index in (CLIENT, COORDINATOR))
        for call in (
            token.functions.mint(other, DEVNET.coordinator_bond),
            token.functions.approve(stakes.address, DEVNET.coordinator_bond),
            stakes.functions.register_coordinator(other, other),
        ):
            receipt = await self.node.transact(call, signer=COORDINATOR)
            assert receipt["status"] == 1
        calls = (
            token.functions.mint(client, 100 * USD),
            token.functions.approve(escrow.address, 80 * USD),
            escrow.functions.deposit(80 * USD, NOBODY),
            escrow.functions.lock(other, 50 * USD),
        )
        return [await self.node.transact(call) for call in calls]


@pytest.fixture(params=KINDS)
async def market(request: pytest.FixtureRequest) -> AsyncIterator[Market]:
    async with web3_node(request.param) as node:
        yield Market(node, await node.deploy())


async def test_contracts_deploy_and_read_through_web3(market: Market) -> None:
    w3, deployment = market.node.w3, market.deployment
    for name in CONTRACTS:
        assert await w3.eth.get_code(market.contract(name).address)
    separator = await market.contract("Stakes").functions.domain_separator().call()
    assert separator == deployment.domain().separator(), "what Python signs, the contract checks"
    assert await market.contract("Court").functions.case_of(bytes(32)).call() == (0,) * 8


async def test_typed_calls_and_web3_encode_and_decode_alike(market: Market) -> None:
    await market.fund()
    client, other = (market.node.account(index).address for index in (CLIENT, COORDINATOR))
    accounts = [Address(bytes.fromhex(account[2:])) for account in (client, other)]
    escrow = Contracts.of(market.deployment).escrow
    functions = market.contract("Escrow").functions
    query = escrow.tab(*accounts)
    asked = functions.tab(client, other)
    assert asked._encode_transaction_data() == "0x" + query.data.hex()
    answer = await market.node.w3.eth.call(
        {"to": market.contract("Escrow").address, "data": query.data}
    )  # type: ignore[typeddict-item]
    found = query.decode(answer)
    assert (found.locked, found.paid) == (50 * USD, 0)
    assert (await asked.call())[0] == found.locked


async def test_money_moves_and_logs_report_it(market: Market) -> None:
    receipts = await market.fund()
    assert [receipt["status"] for receipt in receipts] == [1, 1, 1, 1]
    assert all(21_000 < receipt["gasUsed"] < 400_000 for receipt in receipts)
    client, other = (market.node.account(index).address for index in (CLIENT, COORDINATOR))
    escrow = market.contract("Escrow")
    assert await escrow.functions.balance_of(client).call() == 30 * USD
    first, last = receipts[0]["blockNumber"], receipts[-1]["blockNumber"]
    [locked] = await escrow.events.Locked().get_logs(from_block=first, to_block=last)
    assert (locked["args"]["payer"], locked["args"]["payee"]) == (client, other)
    assert locked["transactionHash"] == receipts[3]["transactionHash"]
    [again] = escrow.events.Locked().process_receipt(receipts[3])
    assert again["args"] == locked["args"] and again["logIndex"] == locked["logIndex"]
    assert await escrow.events.Locked().get_logs(from_block=first, to_block=last - 1) == []
    [raw] = await market.node.w3.eth.get_logs(
        {"address": escrow.address, "fromBlock": last, "toBlock": last}
    )
    decoded = Contracts.of(market.deployment).event(
        Address(bytes.fromhex(raw["address"][2:])), tuple(raw["topics"]), raw["data"]
    )
    assert type(decoded).__name__ == "Locked" and decoded.amount == 50 * USD  # type: ignore[union-attr]


async def test_a_coordinators_announcement_is_read_from_the_logs(market: Market) -> None:
    await market.fund()
    other = market.node.account(COORDINATOR).address
    stakes = Contracts.of(market.deployment).stakes
    line = b"/ip4/1.2.3.4/tcp/5"
    call = market.contract("Stakes").functions.announce(other, b"\x07" * 32, line)
    account = Address(bytes.fromhex(other[2:]))
    wanted = stakes.announce(account, Hash32(b"\x07" * 32), line)
    assert call._encode_transaction_data() == "0x" + wanted.data.hex()
    receipt = await market.node.transact(call, signer=COORDINATOR)
    assert receipt["status"] == 1 and receipt["gasUsed"] < wanted.gas
    [raw] = receipt["logs"]
    assert Contracts.of(market.deployment).event(
        stakes.address, tuple(raw["topics"]), raw["data"]
    ) == Announced(account, Hash32(b"\x07" * 32), line)


async def test_revert_gives_the_contracts_reason_and_a_receipt(market: Market) -> None:
    await market.fund()
    node, escrow = market.node, market.contract("Escrow")
    too_much = escrow.functions.lock(node.account(COORDINATOR).address, 90 * USD)
    with pytest.raises((ContractLogicError, TransactionFailed)) as reverted:
        await too_much.call({"from": node.account(CLIENT).address})
    assert "execution reverted: amount" in str(reverted.value)
    before = await node.w3.eth.get_transaction_count(node.account(CLIENT).address)
    receipt = await node.transact(too_much)
    assert receipt["status"] == 0 and receipt["logs"] == []
    assert await node.w3.eth.get_transaction_count(node.account(CLIENT).address) == before + 1


async def test_blocks_and_receipts_are_found_by_hash_and_unknown_ones_are_not(
    market: Market,
) -> None:
    w3 = market.node.w3
    [receipt, *_] = await market.fund()
    block = await w3.eth.get_block(receipt["blockHash"])
    assert block["number"] == receipt["blockNumber"]
    assert receipt["transactionHash"] in block["transactions"]
    parent = await w3.eth.get_block(block["number"] - 1)
    assert (block["parentHash"], block["timestamp"] >= parent["timestamp"]) == (
        parent["hash"],
        True,
    )
    with pytest.raises(TransactionNotFound):
        await w3.eth.get_transaction_receipt(b"\x77" * 32)  # type: ignore[arg-type]
    with pytest.raises(BlockNotFound):
        await w3.eth.get_block(10**6)


async def test_fee_history_has_a_row_per_block(market: Market) -> None:
    await market.fund()
    history = await market.node.w3.eth.fee_history(3, "latest", [50])
    assert all(fee > 0 for fee in history["baseFeePerGas"])
    if market.node.kind == "eth-tester":
        return  # eth-tester gives neither rewards nor the next block's fee
    assert len(history["baseFeePerGas"]) == 4
    assert [len(row) for row in history["reward"]] == [1, 1, 1]
    newest = await market.node.w3.eth.get_block("latest")
    assert history["baseFeePerGas"][-2] == newest["baseFeePerGas"]


async def test_transaction_behind_a_nonce_gap_is_not_mined_before_the_gap_is_filled(
    market: Market,
) -> None:
    node = market.node
    account, sink = node.account(2), node.account(3).address
    payment = {"to": sink, "data": b"", "gas": 21_000, "value": 7}
    before = await node.w3.eth.get_balance(sink)
    held = 1
    try:
        await node.hand_over(payment, nonce=1, signer=2)
    except ValidationError:
        assert node.kind == "eth-tester", "it keeps no transactions behind a gap"
        held = 0
    await node.mine()
    assert await node.w3.eth.get_transaction_count(account.address) == 0
    await node.hand_over(payment, nonce=0, signer=2)
    await node.mine()
    assert await node.w3.eth.get_transaction_count(account.address) == 1 + held
    assert await node.w3.eth.get_balance(sink) == before + 7 * (1 + held)


async def test_beacon_contract_takes_the_key_that_it_was_deployed_with(market: Market) -> None:
    """An unproven round is zero, and the pairing check refuses a wrong signature."""
    beacon = market.contract("Beacon").functions
    assert await beacon.randomness(5).call() == bytes(32)
    with pytest.raises((ContractLogicError, TransactionFailed)):
        await beacon.submit(5, words_bytes((1, 2, 3, 4))).call(
            {"from": market.node.account(CLIENT).address, "gas": 300_000}
        )
