"""Signs what an owner without coins wants done on chain, for a relayer to send (PROTOCOL 2.8)."""

from collections.abc import Mapping
from enum import StrEnum

from quorate_contracts.calls import ask
from quorate_contracts.encodings import OPEN_MAX
from quorate_contracts.relayed_requests import Draft, RequestFile, sign_requests
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.owner_desk import OwnerDesk
from quorate_node.owner.registration import network_of, network_url
from quorate_protocol.messages.ports import Signer
from quorate_protocol.messages.requests import (
    ChangePayoutRequest,
    CloseSlotRequest,
    OpenSlotsRequest,
    RegisterRequest,
    UnbondSlotRequest,
    WithdrawRequest,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32, Sequence, Small, UnixSeconds


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
    """Signs the requests of a wish. `wanted` maps each host class to its run slots, for joining.

    Raises Refused if nothing is left to ask for, or the owner's key is not here.
    """
    owner, stake = keys.owner, Amount(0)
    if owner is None:
        raise Refused(Code.UNSUPPORTED, "the owner's key is not here: it alone signs requests")
    if wish is Wish.JOIN:
        drafts, stake = await _join(desk, keys, owner, wanted)
    elif wish is Wish.PAYOUT:
        drafts = [_payout(owner.address, payout or owner.address)]
    elif wish is Wish.LEAVE:
        slots = (await desk.state()).open_slots()
        drafts = [_close_one(owner.address, slot.host_class, slot.place) for slot in slots]
    elif wish is Wish.WITHDRAW:
        drafts = await _withdraw(desk, owner.address, max_fee)
    else:
        drafts = await _unbond(desk, owner.address)
    if not drafts:
        raise Refused(Code.WRONG_PHASE, f"{wish}: the chain has it already, or not yet")
    return await sign_requests(desk.client, desk.contracts, owner, drafts, deadline, max_fee, stake)


async def _join(
    desk: OwnerDesk, keys: ProviderKeys, owner: Signer, wanted: Mapping[Hash32, int]
) -> tuple[list[Draft], Amount]:
    drafts: list[Draft] = []
    account, stakes = owner.address, desk.contracts.stakes
    if not await ask(desk.client, stakes.role_of(account)):
        places = (keys.payout, keys.peer_public, keys.box_public, await _network(desk))
        named = (account, keys.operator.address, *places)
        drafts.append(lambda *end: RegisterRequest(*named, *end))
    count = 0
    for host_class, slots in sorted(wanted.items()):
        left = slots - await ask(desk.client, stakes.open_slots_of(account, host_class))
        count += max(0, left)
        while left > 0:
            drafts.append(_open(account, host_class, min(left, OPEN_MAX)))
            left -= OPEN_MAX
    # Opening slots also restores what was burned of others.
    lacks = (await desk.state()).lacks if drafts else Amount(0)
    each = desk.contracts.deployment.constants().slot_stake
    return drafts, Amount(count * each + lacks)


def _open(account: Address, host_class: Hash32, count: int) -> Draft:
    return lambda *end: OpenSlotsRequest(account, host_class, Small(count), *end)


def _payout(account: Address, payout: Address) -> Draft:
    return lambda *end: ChangePayoutRequest(account, payout, *end)


async def _unbond(desk: OwnerDesk, account: Address) -> list[Draft]:
    state = await desk.state()
    due = [slot for slot in state.closed_slots() if slot.back_at <= state.read_at]
    return [_unbond_one(account, slot.host_class, slot.place) for slot in due]


def _unbond_one(account: Address, host_class: Hash32, place: int) -> Draft:
    return lambda *end: UnbondSlotRequest(account, host_class, Sequence(place), *end)


def _close_one(account: Address, host_class: Hash32, place: int) -> Draft:
    return lambda *end: CloseSlotRequest(account, host_class, Sequence(place), *end)


async def _withdraw(desk: OwnerDesk, account: Address, max_fee: Amount) -> list[Draft]:
    balance = (await desk.state()).balance  # the fee comes out of it
    return [lambda *end: WithdrawRequest(account, balance, *end)] if balance > max_fee else []


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
