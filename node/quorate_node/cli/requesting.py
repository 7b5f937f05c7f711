"""Signs what an owner without coins wants done on chain, for a relayer to send (PROTOCOL 2.8)."""

from collections.abc import Mapping
from enum import StrEnum

from quorate_contracts.account import goals
from quorate_contracts.account.relayed_requests import RequestFile, sign_requests
from quorate_contracts.generated.contract_calls import Call
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_node.owner.registration import (
    network_of,
    network_url,
    register_call,
    registration_state,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds


class Wish(StrEnum):
    """What the owner wants."""

    JOIN = "join"  # register, and open a stake slot for each run slot
    LEAVE = "leave"  # close all slots
    UNBOND = "unbond"  # take back the stake of the slots that are due
    WITHDRAW = "withdraw"  # send the balance in Escrow to the payout account
    PAYOUT = "payout"  # another payout account


async def requests_for(
    desk: OwnerDesk,
    keys: ProviderKeys,
    wish: Wish,
    wanted: Mapping[Hash32, int],
    payout: Address | None,
    deadline: UnixSeconds,
    max_fee: Amount,
) -> RequestFile:
    """Signs the requests of a wish. `wanted` maps each pool to its run slots, for joining.

    Raises Refused if nothing is left to ask for, or the owner's key is not here.
    """
    owner, contracts = keys.owner, desk.contracts
    if owner is None:
        raise Refused(Code.UNSUPPORTED, "the owner's key is not here: it alone signs requests")
    calls: list[Call] = []
    if wish is Wish.JOIN:
        calls = await _join(desk, keys, wanted)
    elif wish is Wish.PAYOUT:
        calls = [contracts.stakes.change_payout(payout or owner.address)]
    else:
        state = await desk.state()
        if wish is Wish.LEAVE:
            calls = goals.close_slots(contracts, state.slots)
        elif wish is Wish.UNBOND:
            calls = goals.take_back(contracts, state.closed_slots(), state.read_at)
        else:  # the fee comes out of the balance
            calls = goals.withdraw(contracts.escrow, state.balance, keep=max_fee)
    if not calls:
        raise Refused(Code.WRONG_PHASE, f"{wish}: the chain has it already, or not yet")
    return await sign_requests(desk.client, contracts, owner, calls, deadline, max_fee)


async def _join(desk: OwnerDesk, keys: ProviderKeys, wanted: Mapping[Hash32, int]) -> list[Call]:
    calls: list[Call] = []
    found = await registration_state(desk.client, desk.contracts, keys, wanted)
    if not found.is_registered:
        calls.append(register_call(desk.contracts, keys, await _network(desk)))
    return calls + goals.open_slots(desk.contracts, found.short, found.stake_missing)


async def _network(desk: OwnerDesk) -> Hash32:
    """The network to register: of the public URL, else where the coordinators see this machine."""
    config, seen = desk.config, []
    for coordinator in () if config.public_url else desk.coordinators:
        try:
            seen.append(await coordinator.observed_address())
        except (Unavailable, Refused):
            continue  # not re-raised: another coordinator may tell
    host = config.listen_host
    return network_of(network_url(config.public_url, seen, f"http://{host}:{config.listen_port}"))
