"""Tests that the owner learns which executions ended without pay, and why.

Otherwise a machine that computes wrong results would work without pay until somebody notices. The
owner also learns when the coordinator contradicts an earlier signed message, and sees that message.
"""

import logging

import pytest

from quorate_node.core import events
from quorate_node.core.execution import DONE_KEEP_SECONDS
from quorate_node.core.phases import FAULTED, LEFT_OUT, UNCONFIRMED, Receipted, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.frame_handler import FrameHandler
from quorate_node.status.status import status_of
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import CommitEntry
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    OPERATOR,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    commit_set,
    make_terms,
    verdict,
)

OTHER = Hash32(b"\x0a" * 32)


def told(driver: Driver) -> list[tuple[Hash32, str]]:
    return [
        (item.lease, item.why) for item in status_of(driver.core, OPERATOR.address, "", {}).unpaid
    ]


class Daemon:
    """The parts of the actor that the frame handler uses."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def submit(self, event: events.Event) -> object:
        return self._driver.do(event)


def decided(
    lease: Hash32, group: tuple[Hash32, ...], faulted: tuple[Hash32, ...] = (), seq: int = 1
) -> events.VerdictReceived:
    event = verdict(lease, seq)
    message = replace(event.verdict.message, group=group, faulted=faulted)
    return replace(event, verdict=seal(DOMAIN, message, STATEMENT_KEY.sign))


@pytest.mark.parametrize(
    ("group", "faulted", "why"),
    [("mine", "", ""), ("other", "mine", FAULTED), ("other", "", UNCONFIRMED)],
)
def test_status_names_executions_that_a_verdict_does_not_pay(
    group: str, faulted: str, why: str
) -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.advance(lease, Revealed)
    assert told(driver) == []
    named = {"mine": (lease,), "other": (OTHER,), "": ()}
    driver.do(decided(lease, named[group], named[faulted]))
    assert told(driver) == ([(lease, why)] if why else [])


def test_status_names_an_execution_that_was_not_revealed_in_time() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.advance(lease, Receipted)
    driver.do(decided(lease, (OTHER,)))
    assert told(driver) == [(lease, LEFT_OUT)]


def test_reason_of_a_lapse_is_shown_on_one_printable_line() -> None:
    """The reason may come from a coordinator, and it is shown in a terminal."""
    driver = Driver(ProviderCore(make_terms(2)))
    one, other = driver.assign(1), driver.assign(2)
    driver.do(events.TaskFailed(one, "StartTask: the container engine does not start it"))
    driver.do(events.TaskFailed(other, "commit refused: \x1b[2J\nready\u202e"))
    assert told(driver) == [
        (one, "StartTask: the container engine does not start it"),
        (other, "commit refused: ?[2J?ready?"),
    ]


async def test_fault_is_logged_even_when_its_lease_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coordinator may have a held job executed again up to three days later."""
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.advance(lease, Revealed)
    driver.do(decided(lease, (lease,)))
    driver.do(events.Tick(), after=DONE_KEEP_SECONDS + 1)
    assert lease not in driver.core.executions

    inbox = FrameHandler(Daemon(driver), COORDINATOR, DOMAIN, recover)
    with caplog.at_level(logging.WARNING):
        await inbox.handle(
            "", frames.encode(frames.VerdictSent(lease, decided(lease, (lease,), seq=2).verdict))
        )
        assert not caplog.records
        await inbox.handle(
            "",
            frames.encode(
                frames.VerdictSent(lease, decided(lease, (OTHER,), (lease,), seq=3).verdict)
            ),
        )
    assert lease.hex() in caplog.text and "a fault" in caplog.text


async def test_contradiction_of_a_coordinator_is_logged_with_the_signed_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The provider once told only the coordinator, which knows it already."""
    driver = Driver(ProviderCore(make_terms()))
    inbox = FrameHandler(Daemon(driver), COORDINATOR, DOMAIN, recover)
    held = driver.advance(driver.assign(), Revealed)
    entry = CommitEntry(Hash32(b"\x77" * 32), STRANGER.address, ZERO_HASH)
    other = commit_set(held, driver.now, (entry,))
    frame = frames.encode(frames.CommitSetSent(held.assignment_hash, other.commit_set))
    with caplog.at_level(logging.WARNING), pytest.raises(Refused):
        await inbox.handle("", frame)
    assert COORDINATOR.hex() in caplog.text and frame.decode() in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(Refused):
        foreign = commit_set(held, driver.now, (entry,), signer=STRANGER)
        sent = frames.CommitSetSent(held.assignment_hash, foreign.commit_set)
        await inbox.handle("", frames.encode(sent))
    assert not caplog.records, "a stranger's signature proves nothing about the coordinator"
