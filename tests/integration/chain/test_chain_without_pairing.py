"""Tests that a chain on which no beacon round can be proven, or whose contracts see foreign block
numbers, is refused.

Programs refuse it when they deploy contracts and when they read a deployment.
"""

from pathlib import Path
from typing import Any

import pytest

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
from support.chain.meddler import Meddler

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
    async def instead(method: str, params: Any) -> dict[str, Any] | None:
        if method == "eth_call" and str(params[0]["to"]).lower() == "0x" + "00" * 19 + place:
            return {"result": answer}
        # a deployment exists there
        return {"result": "0x00"} if method == "eth_getCode" else None

    async with node("devnet") as chain:
        meddler = Meddler(chain.url)
        meddler.instead = instead
        async with through(meddler.handle) as client:
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
    assert "eth_sendRawTransaction" not in meddler.methods and not (tmp_path / "x.json").exists()


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
    async def instead(method: str, params: Any) -> dict[str, Any] | None:
        if method == "eth_chainId":
            return {"result": hex(chain_id)}
        if method == "eth_call" and params[0]["data"] == data(NUMBER_CODE):
            return {"result": data(seen.to_bytes(32, "big"))}
        return None

    async with node("devnet") as chain:
        meddler = Meddler(chain.url)
        meddler.instead = instead
        async with through(meddler.handle) as client:
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
