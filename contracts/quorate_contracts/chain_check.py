"""Whether a chain node is the one that a deployment is on. Asked first, because everything after
it would fail in worse words.
"""

from quorate_contracts.deploy import Deployment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_runtime.beacon.bls import map_probe, pairing_probes
from quorate_runtime.chain.client import ChainClient

PAIRING, MAP_TO_G1 = Address(bytes(19) + b"\x0f"), Address(bytes(19) + b"\x10")


async def check_chain(client: ChainClient, deployment: Deployment) -> None:
    """Refused(CHAIN) when the node serves another chain, or one on which these contracts do not
    stand.
    """
    await check_chain_id(client, deployment)
    for name, address in (("stakes", deployment.stakes), ("escrow", deployment.escrow)):
        if not await client.code(address):
            detail = (
                f"no {name} contract at 0x{address.hex()}: the chain is another, or was made "
                f"anew; init with its deployment"
            )
            raise Refused(Code.CHAIN, detail)
    await check_curve(client)


async def check_chain_id(client: ChainClient, deployment: Deployment) -> None:
    """Refused(CHAIN) when the node serves another chain: what is signed with the number that it
    tells could be sent there.
    """
    found = await client.chain_id()
    if found != deployment.chain_id:
        detail = (
            f"the chain node serves chain {found}, the contracts are on chain "
            f"{deployment.chain_id}: name its node (--chain-url)"
        )
        raise Refused(Code.CHAIN, detail)


async def check_curve(client: ChainClient) -> None:
    """Refused(CHAIN) on a chain whose court could prove no beacon round: EIP-2537 is asked for
    by what it answers to known points.

    A call of an address that has no function there succeeds with nothing.
    """
    yes, no = pairing_probes()
    element, point = map_probe()
    answers = ((1).to_bytes(32, "big"), bytes(32), point)
    for address, data, wanted in zip(
        (PAIRING, PAIRING, MAP_TO_G1), (yes, no, element), answers, strict=True
    ):
        if await client.call(address, data) != wanted:
            detail = (
                f"the chain lacks EIP-2537 (no sound function at 0x{address.hex()}), so that "
                f"no jury could be drawn: use one with it"
            )
            raise Refused(Code.CHAIN, detail)
