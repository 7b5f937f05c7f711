"""Every credit of a provider goes to the archive, with the line of its verdict."""

import pytest

from quorate_coordinator.core.effects import AppendSummary, CreditEntry
from quorate_protocol.crypto.merkle import FullLog, credit_entry
from quorate_protocol.units import Address
from support.markets.scripted_market import Market, Party


def entries_of(market: Market, owner: Address) -> list[CreditEntry]:
    kept = [
        entry
        for effect in market.effects
        if isinstance(effect, AppendSummary)
        for entry in effect.credits
        if entry.owner == owner
    ]
    return sorted(kept, key=lambda entry: entry.place)


@pytest.mark.rule("6.56")
@pytest.mark.parametrize("liars", [0, 1])
def test_the_archive_gets_every_entry_of_the_logs_of_credits(liars: int) -> None:
    market = Market(*[Party(number, lies=number < liars) for number in range(5)])
    for number in range(6):
        market.until_decided(market.order(number % 2, number + 1))
    earned = 0
    for owner in market.parties:
        provider, entries = market.core.state.providers[owner], entries_of(market, owner)
        hashes = [credit_entry(each.assignment_id, each.pay) for each in entries]
        assert [each.place for each in entries] == list(range(provider.credits.count))
        assert FullLog(hashes).root() == provider.credits.root()
        earned += len(entries)
    assert earned >= 12
