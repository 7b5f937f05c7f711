"""Tests the simulated chain's reorganisations: what they replace, and that no token is lost."""

from functools import partial
from random import Random

from quorate_coordinator.core.model import events as ev
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address
from quorate_protocol.values import replace
from sim.chain import OWN, Chain
from sim.parties import START, key
from sim.plan import draw
from sim.run import play_plan
from sim.schedule import Schedule

CLIENTS = [key("client", number).address for number in range(2)]


def _chain(depth: int, seed: int = 1) -> Chain:
    limits = replace(DEVNET, chain_depth=depth)
    made = Chain(Schedule(START), Random(seed), limits, keccak256(b"class"))
    made.register({}, [], CLIENTS, 1_000, 0)
    return made


def _mine(chain: Chain, blocks: int) -> None:
    for _ in range(blocks):
        chain.schedule.run(1)
        chain.mine()


def _told(chain: Chain) -> list[Address]:
    batch = chain.notes_after(1)
    notes = batch.notes if batch is not None else ()
    return [note.payer for note in notes if isinstance(note, ev.ChainTabChanged)]


def _give_back(chain: Chain, client: Address, amount: int) -> None:
    def give() -> None:
        chain.escrow.give_back(OWN, client, OWN, amount, chain.now)

    chain.client_acts(client, give)


def test_programs_read_only_blocks_that_nothing_can_replace() -> None:
    chain = _chain(depth=4)
    _mine(chain, 4)
    _give_back(chain, CLIENTS[0], 10)
    _mine(chain, 3)
    assert _told(chain) == []
    _mine(chain, 1)
    assert _told(chain) == [CLIENTS[0]]
    chain.reorganise(10)
    assert chain.replaced == 3
    assert _told(chain) == [CLIENTS[0]]


def test_replaced_transaction_comes_again_and_nothing_is_lost() -> None:
    for seed in range(20):
        chain = _chain(depth=4, seed=seed)
        _mine(chain, 4)
        for client in CLIENTS:
            _give_back(chain, client, 400)
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert sorted(_told(chain)) == sorted(CLIENTS)
        for client in CLIENTS:
            chain.client_acts(client, partial(_withdraw, chain, client))
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert chain.escrow.tokens_out == 800
        assert [chain.escrow.tabs[client, OWN].locked for client in CLIENTS] == [600, 600]


def _withdraw(chain: Chain, client: Address) -> None:
    chain.escrow.withdraw_all(client)


def test_market_holds_while_blocks_are_replaced() -> None:
    seed = next(seed for seed in range(1, 100) if draw(seed).limits.chain_depth == 4)
    _, _, violation, coverage = play_plan(draw(seed))
    assert violation is None
    assert coverage.facts["replaced blocks"] > 0
