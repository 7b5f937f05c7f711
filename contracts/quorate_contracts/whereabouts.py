"""Whether a chain node is the one that a deployment is on. Asked first, because everything after it would fail in worse words."""

from quorate_contracts.deploy import Deployment
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.chain.client import ChainClient


async def check_chain(client: ChainClient, deployment: Deployment) -> None:
    """Refused(CHAIN) when the node serves another chain, or one on which these contracts do not stand."""
    found = await client.chain_id()
    if found != deployment.chain_id:
        detail = f"the chain node serves chain {found}, the contracts are on chain {deployment.chain_id}: name its node (--chain-url)"
        raise Refused(Code.CHAIN, detail)
    for name, address in (("stakes", deployment.stakes), ("escrow", deployment.escrow)):
        if not await client.code(address):
            detail = f"no {name} contract at 0x{address.hex()}: the chain is another, or was made anew; init with its deployment"
            raise Refused(Code.CHAIN, detail)
