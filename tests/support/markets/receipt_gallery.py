"""Real receipts of several outcomes and rules, with the keys of everybody who signed in them."""

from dataclasses import dataclass

from quorate_coordinator.core.model.entities import AwaitingRound
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import Sequence
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.noisy_market import NUMERIC, NoisyMarket
from support.markets.scripted_market import CPUS, DOMAIN, STATEMENT, Market, Party, StoppingMarket
from support.receipt_mutations import Keys


@dataclass(frozen=True)
class Specimen:
    """A real receipt, its kind, and the keys of its signers."""

    name: str
    body: Receipt
    keys: Keys
    slots: tuple[StakeSlot, ...] = ()  # the pool's list, as on chain


def gallery() -> list[Specimen]:
    """Returns one receipt of each kind."""
    made = {
        "accepted, quorum-2": _decided(Market(*_parties(4))),
        "accepted after a dispute": _decided(
            Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
        ),
        "accepted beside silent providers": _decided(
            Market(*[Party(number, is_deaf=number > 1) for number in range(5)])
        ),
        "unresolved, three results": _decided(
            Market(*[Party(number, lies=True, tale=number + 1) for number in range(4)])
        ),
        "nobody left to verify": _decided(
            Market(Party(0), *[Party(number, is_deaf=True) for number in range(1, 4)])
        ),
        "stopped by its client": _decided(StoppingMarket(*_parties(4))),
        "adaptive, audited, unwitnessed": _decided(LargeMarket()),
        "adaptive, witnessed": _witnessed(LargeMarket()),
        "accepted beside an owner that withdrew": _decided(_withdrawn(Market(*_parties(5)))),
        "accepted within a tolerance": _decided(NoisyMarket(0, 5000, 200, 5100), compare=NUMERIC),
        "unverified": _decided(Market(*_parties(2)), accept_unverified=True),
    }
    return [
        Specimen(
            name, market.receipt(), _keys(market), market.core.state.pool_slots[CPUS.id()].slots
        )
        for name, market in made.items()
    ]


def _parties(count: int) -> list[Party]:
    return [Party(number) for number in range(count)]


def _decided(market: Market, **changes: object) -> Market:
    market.until_decided(market.order(0, 1, **changes), seconds=600)
    return market


def _withdrawn(market: Market) -> Market:
    """A market of which one owner has withdrawn its offer."""
    party = list(market.parties.values())[-1]
    offer = market.core.state.providers[party.owner].offer
    assert offer is not None
    gone = replace(offer, seq=Sequence(2), expires=WITHDRAWN)
    market.send_offer(party, gone)
    return market


def _witnessed(market: Market) -> Market:
    job_id = market.order(0, 1)
    market.until(job_id, AwaitingRound)
    market.witness(job_id)
    market.until_decided(job_id, seconds=600)
    return market


def _keys(market: Market) -> Keys:
    signers = [*market.clients, *market.sessions, *(party.key for party in market.parties.values())]
    return Keys(DOMAIN, STATEMENT, {signer.address: signer for signer in signers})
