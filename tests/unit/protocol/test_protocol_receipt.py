"""Tests receipts of whole simulated jobs: they verify, and a named check notices each changed
byte.
"""

import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.messages import receipt
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import ZERO_HASH, Hash32, Outcome
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from sim.coordinator import CoordinatorDaemon
from sim.parties import is_beacon_signature
from sim.plan import draw
from sim.world import World
from support.markets.scripted_market import Party, StoppingMarket


@pytest.fixture(scope="module")
def bodies() -> list[Receipt]:
    found: list[Receipt] = []
    for seed in (1, 2, 3, 29, 31):
        world = World(draw(seed))
        world.run()
        found += [
            _body(world.coordinator, name)
            for name in world.coordinator.documents
            if name.startswith("receipt-doc-")
        ]
    return [*found, _of_stopped_job()]


def _of_stopped_job() -> Receipt:
    """Returns a receipt with a Stop and without a draw, which simulated jobs rarely have."""
    market = StoppingMarket(*(Party(number) for number in range(4)))
    market.until_decided(market.order(0, 1))
    return canonical.decode(Receipt, market.receipts[0])


def _body(daemon: CoordinatorDaemon, name: str) -> Receipt:
    return canonical.decode(Receipt, daemon.documents[name])


def _of(bodies: list[Receipt], outcome: Outcome) -> list[Receipt]:
    return [body for body in bodies if body.verdict.message.outcome is outcome]


@pytest.mark.rule("3.36", "3.41", "7.1")
def test_receipts_of_every_outcome_verify(bodies: list[Receipt]) -> None:
    assert len(bodies) > 15
    for body in bodies:
        report = receipt_checks.verify(receipt.document(body), recover, is_beacon_signature)
        assert report.valid, report.failures
        assert not report.chain_checked


@pytest.mark.rule("3.5", "3.40", "7.1")
@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.LAPSED])
def test_every_changed_byte_is_noticed(bodies: list[Receipt], outcome: Outcome) -> None:
    body = min(_of(bodies, outcome), key=lambda item: len(item.encode()))
    whole = receipt.document(body)
    for position in range(0, len(whole), 23):
        changed = bytearray(whole)
        changed[position] ^= 1
        report = receipt_checks.verify(bytes(changed), recover, is_beacon_signature)
        assert not report.valid, (
            f"byte {position} of {len(whole)}: {bytes(whole[position - 20 : position + 20])!r}"
        )


def test_a_run_on_another_class_than_was_ordered_is_noticed(bodies: list[Receipt]) -> None:
    body = _of(bodies, Outcome.ACCEPTED)[0]
    for named, is_good in (
        (ZERO_HASH, True),
        (body.ack.message.pool, True),
        (Hash32(b"\1" * 32), False),
    ):
        order = replace(body.order, message=replace(body.order.message, pool=named))
        report = receipt_checks.verify(
            receipt.document(replace(body, order=order)), recover, is_beacon_signature
        )
        assert ("pool" not in {check.name for check in report.failures}) is is_good


@pytest.mark.rule("3.19", "3.37", "3.40", "7.1")
def test_a_changed_body_with_its_own_cid_is_noticed(bodies: list[Receipt]) -> None:
    """The CID alone proves nothing: a forger can compute the CID of a changed body. The signatures
    must not match.
    """
    body = _of(bodies, Outcome.ACCEPTED)[0]
    tree = canonical.to_json(body)
    missed = []
    for path, value in _leaves(tree):
        if value is None:
            continue  # no witness or Stop: to add one needs its signature
        changed = _with(tree, path, _other(value))
        data = canonical.canonical({"body": changed, "cid": _cid(changed)})
        if receipt_checks.verify(data, recover, is_beacon_signature).valid:
            missed.append(path)
    assert missed == []


@pytest.mark.rule("3.62", "3.58")
def test_a_receipt_names_the_spec_and_does_not_contain_it(bodies: list[Receipt]) -> None:
    for body in bodies:
        tree = canonical.to_json(body)
        assert isinstance(tree, dict) and "spec" not in tree and b"argv" not in body.encode()
        assert (body.stop is not None) == (body.verdict.message.outcome is Outcome.LAPSED)


def _leaves(tree: object, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], object]]:
    if isinstance(tree, dict):
        return [found for key, item in tree.items() for found in _leaves(item, (*path, key))]
    if isinstance(tree, list):
        return [found for index, item in enumerate(tree) for found in _leaves(item, (*path, index))]
    return [(path, tree)]


def _other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and value.startswith("0x") and len(value) > 2:
        return value[:-1] + ("1" if value[-1] == "0" else "0")
    return f"{value}x" if isinstance(value, str) else value


def _with(tree: object, path: tuple[object, ...], value: object) -> object:
    if not path:
        return value
    if isinstance(tree, dict):
        return {
            key: _with(item, path[1:], value) if key == path[0] else item
            for key, item in tree.items()
        }
    assert isinstance(tree, list)
    return [
        _with(item, path[1:], value) if index == path[0] else item
        for index, item in enumerate(tree)
    ]


def _cid(tree: object) -> str:
    from quorate_protocol.codec.cids import document_cid

    return document_cid(canonical.canonical(tree))


@pytest.mark.rule("3.36")
def test_garbage_gives_one_failed_check() -> None:
    for data in (b"", b"{}", b'{"body":{},"cid":"x"}', b"\xff" * 40):
        report = receipt_checks.verify(data, recover, is_beacon_signature)
        assert not report.valid and [check.name for check in report.checks] == ["form"]
