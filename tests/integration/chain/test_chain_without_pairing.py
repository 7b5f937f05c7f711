"""Tests that a chain on which no beacon round can be proven, or whose contracts see foreign block
numbers, is refused.

Programs refuse it when they deploy contracts and when they read a deployment.
"""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_contracts import deploy
from quorate_contracts.chain_check import NUMBER_CODE, check_chain, check_curve, check_machine
from quorate_devnet.market.genesis import Funds, begin, deploy_once
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, Amount, BlockNumber, Hash32
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import keygen, public_key
from quorate_runtime.keys.crypto import KeySigner
from support.chain.chain_nodes import node
from support.chain.chain_proxy import through

BEACON = BeaconInfo(public_key(keygen(b"a beacon that nobody asks")), DEVNET.beacon_period, 1)


def data(value: bytes) -> str:
    return "0x" + value.hex()


ONE = data((1).to_bytes(32, "big"))


@pytest.mark.parametrize("kind", ["devnet", "anvil"])
async def test_a_chain_with_the_curve_is_accepted(kind: str) -> None:
    async with node(kind) as chain:
        await check_curve(chain.client)
        await chain.mine(3)
        await check_machine(chain.client)


@pytest.mark.rule("0.5")
@pytest.mark.parametrize(
    ("place", "answer"),
    [("0f", "0x"), ("0f", ONE), ("0f", "0x" + "00" * 32), ("10", "0x"), ("10", ONE)],
)
async def test_a_chain_without_a_sound_curve_is_refused_before_anything_is_sent(
    place: str, answer: str, tmp_path: Path
) -> None:
    asked: list[str] = []
    async with node("devnet") as chain, aiohttp.ClientSession() as session:

        async def handle(request: web.Request) -> web.Response:
            tree = await request.json()
            asked.append(tree["method"])
            called = str(tree["params"][0]["to"]).lower() if tree["method"] == "eth_call" else ""
            if called == "0x" + "00" * 19 + place:
                return web.json_response({"jsonrpc": "2.0", "id": tree["id"], "result": answer})
            if tree["method"] == "eth_getCode":  # a deployment exists there
                return web.json_response({"jsonrpc": "2.0", "id": tree["id"], "result": "0x00"})
            async with session.post(chain.url, json=tree) as response:
                return web.json_response(await response.json())

        async with through(handle) as client:
            made = deploy.plan(
                ZERO_ADDRESS, 0, await client.chain_id(), BlockNumber(0), DEVNET, BEACON, True
            ).deployment
            signer = KeySigner(bytes(31) + b"\x07")
            funds = Funds(signer, signer.address, signer, Amount(0), (), Amount(0))
            url = client.rpc.url
            for attempt in (
                check_chain(client, made),
                begin(client, 31337, BEACON, (), funds),
                deploy_once(url, "", tmp_path / "x.json"),
            ):
                with pytest.raises(Refused, match="EIP-2537"):
                    await attempt
    assert "eth_sendRawTransaction" not in asked and not (tmp_path / "x.json").exists()


@pytest.mark.rule("0.5")
@pytest.mark.parametrize(
    ("chain_id", "seen", "told"),
    [
        (42_161, 0, r"chain 42161 \(Arbitrum One\) shows .*: use one that numbers its own"),
        (31_337, 21_000_000, r"chain 31337 shows its contracts the block numbers of another"),
    ],
)
async def test_a_chain_that_shows_foreign_block_numbers_is_refused_by_name(
    chain_id: int, seen: int, told: str
) -> None:
    async with node("devnet") as chain, aiohttp.ClientSession() as session:

        async def handle(request: web.Request) -> web.Response:
            tree = await request.json()
            async with session.post(chain.url, json=tree) as response:
                found = await response.json()
            if tree["method"] == "eth_chainId":
                found["result"] = hex(chain_id)
            if tree["method"] == "eth_call" and tree["params"][0]["data"] == data(NUMBER_CODE):
                found["result"] = data(seen.to_bytes(32, "big"))
            return web.json_response(found)

        async with through(handle) as client:
            with pytest.raises(Refused, match=told):
                await check_machine(client)


async def test_a_chain_with_another_first_block_than_the_deployments_is_refused() -> None:
    async with node("devnet") as chain:
        plan = deploy.plan(ZERO_ADDRESS, 0, 31337, BlockNumber(0), DEVNET, BEACON, True)
        made = await deploy.with_genesis(plan.deployment, chain.client)
        with pytest.raises(Refused, match="no Beacon contract"):
            await check_chain(chain.client, made)
        with pytest.raises(Refused, match="as the first block, the deployment's chain begins with"):
            await check_chain(chain.client, replace(made, genesis=Hash32(b"\x11" * 32)))
