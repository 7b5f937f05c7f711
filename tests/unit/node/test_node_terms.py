"""Tests an owner that changes price, images or coordinators between two starts.

Earlier decisions do not change.
"""

from dataclasses import dataclass, field

import pytest

from quorate_node.core import events
from quorate_node.core.phases import Accepted, Committed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import Terms
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.step import Input
from quorate_protocol.units import Hash32, Price, UnixSeconds
from quorate_protocol.values import replace
from support.markets.provider_world import PROVIDER, STRANGER, Driver, make_terms

DEARER = replace(make_terms(), policy=replace(make_terms().policy, price_floor=Price(10**9)))
ELSEWHERE = replace(make_terms(), statement_keys={STRANGER: STRANGER})


@dataclass
class Recorder(Driver):
    """A driver that keeps its inputs as a journal does."""

    journal: list[Input[events.Event]] = field(default_factory=list)

    def do(self, event: events.Event, after: int = 0):  # type: ignore[no-untyped-def]
        done = super().do(event, after)
        self.journal.append(Input(self.now, Hash32(self.rolls.to_bytes(32, "big")), event))
        return done


@pytest.fixture
def worked() -> Recorder:
    """Returns a provider that was configured, took a job and committed."""
    driver = Recorder(ProviderCore(make_terms()))
    driver.do(events.Configured(make_terms()))
    driver.advance(driver.assign(), Committed)
    return driver


@pytest.mark.parametrize("terms", [DEARER, ELSEWHERE])
def test_journal_replays_the_same_under_other_terms(worked: Recorder, terms: Terms) -> None:
    """Under today's terms the provider might decline that job, or not know its coordinator."""
    twin = ProviderCore(terms)
    for item in worked.journal:
        twin.step(item)
    assert twin.snapshot() == worked.core.snapshot() and not twin.is_configured(terms)
    twin.step(Input(UnixSeconds(worked.now + 1), Hash32(bytes(32)), events.Configured(terms)))
    assert twin.is_configured(terms) and twin.terms == terms
    assert twin.executions == worked.core.executions, "what runs goes on"


def test_new_terms_decide_about_later_assignments(worked: Recorder) -> None:
    worked.core.step(
        Input(
            worked.now,
            Hash32(bytes(32)),
            events.Configured(replace(DEARER, classes=make_terms(2).classes)),
        )
    )
    assert not isinstance(worked.execution(worked.assign(2)).phase, Accepted), "below the new floor"


def test_folder_refuses_the_terms_of_another_provider(worked: Recorder) -> None:
    assert (
        worked.refusal(events.Configured(replace(make_terms(), provider=STRANGER)))
        is Code.WRONG_CHAIN
    )
    twin = ProviderCore(replace(make_terms(), provider=STRANGER))
    with pytest.raises(Refused, match="another provider or deployment"):
        twin.step(worked.journal[0])
    assert worked.core.terms.provider == PROVIDER
