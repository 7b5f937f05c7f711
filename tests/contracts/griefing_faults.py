"""Attacks by faults and relayed requests, run to their ends under mainnet's rules."""

from contracts.fault_evidence import other_commit, provers_market
from contracts.griefing_accounts import Damage, grievance
from contracts.griefing_court import ACCUSED, world
from contracts.market import CLASS, Evidence, Key, Market, key
from quorate_contracts.bindings.calls import Call
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import USD
from quorate_protocol.messages.requests import OpenSlotsRequest, RegisterRequest, Request
from quorate_protocol.units import Amount, Nonce, Price, Seconds, Small, UnixSeconds

OPERATOR, SENDER = key("operator0"), key("anybody").address
RELAYER, FRESH = key("relayer").address, key("a new owner")
MALLORY = key("who takes the tokens away").address


def _cheap(made: Market) -> Evidence:
    """Returns an execution for which the provider gets next to nothing."""
    return made.execution(ACCUSED, key("client0"), price_per_hour=Price(1), max_duration=Seconds(1))


def equivocation() -> Damage:
    """A provider signs two Commits for next to nothing, and somebody proves it."""
    made = provers_market(world)
    with grievance(made, {ACCUSED}) as grief:
        found = _cheap(made)
        run = found.shown.run
        other = other_commit(made, found)
        made.evm.send(SENDER, made.contracts.faults.equivocation(run.assignment, run.commit, other))
        return grief.ended()


def relayed_requests(wanted: str) -> Damage:
    """An account signs a request for a fee, and takes its tokens away before it is sent."""
    made = world()
    owner = FRESH if wanted == "register" else key("owner0")
    made.fund(FRESH)
    with grievance(made, {owner.address}) as grief:
        token, stakes = made.contracts.token, made.contracts.stakes.address
        made.evm.send(owner.address, token.approve(stakes))  # each attack needs it again
        call = _relayed(made, owner, _request(made, owner, wanted))
        made.evm.send(
            owner.address,
            made.contracts.token.transfer(MALLORY, Amount(made.balance(owner.address))),
        )
        grief.apart.add(MALLORY)
        grief.work[owner.address] -= made.balance(MALLORY)  # it has its tokens elsewhere
        grief.fail(RELAYER, call)
        return grief.ended()


def _request(made: Market, owner: Key, wanted: str) -> Request:
    until, fee, me = UnixSeconds(made.evm.now + 60), Amount(USD), owner.address
    rest = (keccak256(b"peer"), keccak256(b"box"), keccak256(b"network"))
    requests: dict[str, Request] = {
        "register": RegisterRequest(
            me, key("new operator").address, key("new payout").address, *rest, Nonce(0), until, fee
        ),
        "open": OpenSlotsRequest(me, CLASS, Small(8), Nonce(0), until, fee),
    }
    return requests[wanted]


def _relayed(made: Market, owner: Key, request: Request) -> Call:
    signature = owner.sign(digest(made.domain, request))
    return made.contracts.stakes.relayed(request, Amount(USD), signature)
