"""Checks that a chain node serves the chain of a deployment. The programs do this first, because
later failures would not name the cause.
"""

from quorate_contracts.code_check import Expected, check_codes
from quorate_contracts.deploy import Deployment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_runtime.beacon.bls import map_probe, pairing_probes
from quorate_runtime.chain.client import ChainClient

PAIRING, MAP_TO_G1 = Address(bytes(19) + b"\x0f"), Address(bytes(19) + b"\x10")


async def check_chain(client: ChainClient, deployment: Deployment) -> None:
    """Raises Refused(CHAIN) if the node serves another chain, or a chain where these contracts are
    missing or have other code or constants.
    """
    await check_chain_id(client, deployment)
    await check_curve(client)
    await check_codes(client, Expected.of(deployment))


async def check_chain_id(client: ChainClient, deployment: Deployment) -> None:
    """Raises Refused(CHAIN) if the node serves another chain than the deployment's."""
    found = await client.chain_id()
    if found != deployment.chain_id:
        detail = (
            f"the chain node serves chain {found}, the contracts are on chain "
            f"{deployment.chain_id}: name its node (--chain-url)"
        )
        raise Refused(Code.CHAIN, detail)


async def check_curve(client: ChainClient) -> None:
    """Raises Refused(CHAIN) on a chain without EIP-2537, where the court could prove no beacon
    round.

    It calls the precompiles with known points, because a call of an address without code succeeds
    and returns nothing.
    """
    yes, no = pairing_probes()
    element, point = map_probe()
    answers = ((1).to_bytes(32, "big"), bytes(32), point)
    for address, data, wanted in zip(
        (PAIRING, PAIRING, MAP_TO_G1), (yes, no, element), answers, strict=True
    ):
        if await client.call(address, data) != wanted:
            detail = (
                f"the chain lacks EIP-2537 (wrong answer at 0x{address.hex()}), so no jury could "
                f"be drawn: use a chain with it"
            )
            raise Refused(Code.CHAIN, detail)
