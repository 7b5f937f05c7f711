"""Restores the stake that was burned, with the owner's key."""

from quorate_contracts.calls import transact
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, usd


async def top_up(desk: OwnerDesk) -> tuple[Amount, list[str]]:
    """Returns what was restored, and the calls for an owner's key that is kept elsewhere.

    Typed again, it sends only what is missing then. Raises Refused if the wallet has too little.
    """
    state, stakes, token = await desk.state(), desk.contracts.stakes, desk.contracts.token
    lacks = state.lacks
    if not lacks:
        return Amount(0), []
    if desk.keys.owner is None:
        spender = stakes.address.hex()
        return Amount(0), [
            f"approve(0x{spender}, {lacks}) of 0x{token.address.hex()}",
            f"top_up({lacks}) of 0x{spender}",
        ]
    if state.tokens < lacks:
        raise Refused(
            Code.BAD_AMOUNT,
            f"{usd(lacks)} USD of stake are missing, and the wallet 0x{state.account.hex()} has "
            f"{usd(state.tokens)}: send it more",
        )
    with desk.sender() as sender:
        # Until a block has the transactions, the nonce and so their names stay the same.
        name = f"top-up/{await desk.client.nonce(state.account)}"
        approve = token.approve(stakes.address, lacks)
        await transact(sender, f"{name}/approve", approve)
        await transact(sender, name, stakes.top_up(lacks))
    return lacks, []
