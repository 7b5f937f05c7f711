"""Tests the simulated chain's reorganisations: what they replace, and that no token is lost."""

from random import Random

from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address
from quorate_protocol.values import replace
from sim.chain import Chain
from sim.parties import START, key
from sim.plan import draw
from sim.run import play_plan
from sim.schedule import Schedule

CLIENTS = [key("client", number).address for number in range(2)]


def _chain(depth: int, seed: int = 1) -> Chain:
    limits = replace(DEVNET, chain_depth=depth)
    made = Chain(Schedule(START), Random(seed), limits, keccak256(b"class"))
    made.register({}, [], CLIENTS, 1_000)
    return made


def _mine(chain: Chain, blocks: int) -> None:
    for _ in range(blocks):
        chain.schedule.run(1)
        chain.mine()


def _told(chain: Chain) -> list[Address]:
    batch = chain.notes_after(1)
    return [note.client for note in batch.notes] if batch is not None else []  # type: ignore[union-attr]


def test_programs_read_only_blocks_that_nothing_can_replace() -> None:
    chain = _chain(depth=4)
    _mine(chain, 4)
    chain.request_release(CLIENTS[0], 10)
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
            chain.request_release(client, 400)
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert sorted(_told(chain)) == sorted(CLIENTS)
        _mine(chain, 60)
        for client in CLIENTS:
            chain.finish_release(client)
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert chain.returned == dict.fromkeys(CLIENTS, 400)
        assert chain.allocated == dict.fromkeys(CLIENTS, 600)


def test_market_holds_while_blocks_are_replaced() -> None:
    seed = next(seed for seed in range(1, 100) if draw(seed).limits.chain_depth == 4)
    _, _, violation, coverage = play_plan(draw(seed))
    assert violation is None
    assert coverage.facts["replaced blocks"] > 0
