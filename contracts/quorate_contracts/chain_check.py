"""Checks that a chain node serves the chain of a deployment. The programs do this first, because
later failures would not name the cause.
"""

from collections.abc import Mapping

from quorate_contracts.code_check import Expected, check_codes
from quorate_contracts.deploy import Deployment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.keys.bls import map_probe, pairing_probes

FOREIGN_NUMBERS: Mapping[int, str] = {
    42_161: "Arbitrum One",
    42_170: "Arbitrum Nova",
    421_614: "Arbitrum Sepolia",
}
"""Chains that show contracts the block numbers of Ethereum. Others are found by asking them."""
NUMBER_CODE = bytes.fromhex("4360005260206000f3")  # NUMBER, and returns it
NUMBER_SLACK = 64  # blocks that may come in between, or that one of several nodes lacks

PAIRING, MAP_TO_G1 = Address(bytes(19) + b"\x0f"), Address(bytes(19) + b"\x10")


async def check_chain(client: ChainClient, deployment: Deployment) -> None:
    """Raises Refused(CHAIN) if the node serves another chain, or a chain where these contracts are
    missing or have other code or constants.
    """
    await check_chain_id(client, deployment)
    await check_genesis(client, deployment.genesis)
    await check_machine(client)
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


async def check_genesis(client: ChainClient, wanted: Hash32) -> None:
    """Raises Refused(CHAIN) if the chain begins with another block than the deployment's. A zero
    hash is none: then nothing is known about the first block.
    """
    if wanted == ZERO_HASH:
        return
    first = await client.block(BlockNumber(0))
    if first is None or first.hash != wanted:
        found = "no first block" if first is None else f"0x{first.hash.hex()} as the first block"
        detail = (
            f"the chain node has {found}, the deployment's chain begins with 0x{wanted.hex()}: "
            f"name its node (--chain-url), or init with the deployment of this chain"
        )
        raise Refused(Code.CHAIN, detail)


async def check_machine(client: ChainClient) -> None:
    """Raises Refused(CHAIN), which names the chain, if the contracts cannot work there."""
    chain_id = await client.chain_id()
    name = FOREIGN_NUMBERS.get(chain_id)
    if name is None:
        await check_curve(client)
        head = (await client.head()).number
        try:
            seen = int.from_bytes(await client.call(None, NUMBER_CODE))
        except Refused:
            return  # some nodes run no code without an address
        if abs(seen - head) <= NUMBER_SLACK:
            return
    # Draws and slots are bound to block numbers, whose hashes the programs take from the node.
    told = f"chain {chain_id}{f' ({name})' if name else ''}"
    detail = (
        f"{told} shows its contracts the block numbers of another chain: use one that numbers its "
        f"own blocks, such as Ethereum or Base"
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
