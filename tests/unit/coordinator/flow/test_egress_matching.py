"""Which owners get a rental that wants to reach hosts of the internet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate_attestation import fits
from quorate_coordinator.core.model import row as rows
from quorate_coordinator.core.model.columns import Bucket
from quorate_coordinator.core.model.row import Needs, Row
from quorate_protocol.messages import egress, job_spec, offer
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, DeclineReason, JobKind
from quorate_protocol.values import replace
from support.markets.provider_world import make_spec, make_terms
from support.markets.rented_market import PRICE, Rentals
from support.offers import an_offer

NAMES = st.sampled_from(["*", "*.org", "*.b.org", "a.b.org", "b.org", "huggingface.co", "x.com"])
ADDRESSES_AND_PRIVATE_NAMES = [
    *("127.0.0.1", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "1.2.3.4."),
    *("localhost", "router", "nas.local", "db.internal", "a.org.", "A.org", "user@a.org"),
    *("a.org:443", "*.com/x", "*.*", "*a.org", "[::1]", "::ffff:10.0.0.1", "a..org", ""),
]
LISTS = st.lists(NAMES, max_size=3, unique=True).map(lambda names: tuple(sorted(names)))


@pytest.mark.rule("12.29")
@settings(max_examples=200, deadline=None)
@given(st.lists(LISTS, max_size=8), LISTS, st.lists(st.integers(0, 7), max_size=3))
def test_the_search_finds_the_owners_that_allow_every_host(
    owners: list[tuple[str, ...]], asked: tuple[str, ...], gone: list[int]
) -> None:
    bucket = Bucket()
    for number, names in enumerate(owners):
        bits = rows.PRESENT | (rows.OPEN_EGRESS if "*" in names else 0)
        bucket.put(Address(bytes([number] * 20)), Row(number << 24, bits, 99, 1, 1, egress=names))
    for number in gone:
        bucket.remove(Address(bytes([number] * 20)))
    needs = Needs(rows.PRESENT, 1, 1, egress=asked)
    found = bucket.owners_at(bucket.cheapest(needs, 99, 1, 0, 99))
    wanted = [
        number
        for number, names in enumerate(owners)
        if number not in gone and not egress.lacking(names, asked)
    ]
    assert [owner[0] for owner in found] == wanted


@pytest.mark.rule("12.29")
def test_an_owner_without_egress_is_refused_by_the_hosts_name() -> None:
    spec = replace(make_spec(), kind=JobKind.DEV_ENVIRONMENT, egress=("*.b.org", "huggingface.co"))
    job_spec.validate(spec)
    terms = make_terms()
    allowed = an_offer(terms.provider, 1, 0, terms.slots)
    allowed = replace(allowed, kinds=(JobKind.DEV_ENVIRONMENT,), egress=("*.b.org",))
    offer.check_form(allowed)
    (why,) = list(fits.shortfalls(spec, terms.slots[0], replace(allowed, sandboxes=("noop",))))
    assert why == (DeclineReason.KIND, "its owner allows no egress to huggingface.co")
    assert b"egress" not in replace(allowed, egress=()).encode(), "older offers keep their bytes"
    with pytest.raises(Refused, match=r"offer\.egress: '10\.0\.0\.1'"):
        offer.check_form(replace(allowed, egress=("10.0.0.1",)))


@pytest.mark.rule("12.29")
@pytest.mark.parametrize("name", ADDRESSES_AND_PRIVATE_NAMES)
def test_addresses_and_private_names_are_no_hosts(name: str) -> None:
    assert egress.fault_of((name,)) and not egress.is_host(name)


@pytest.mark.rule("12.29", "12.37")
def test_an_on_demand_price_allows_no_host_and_open_egress_is_no_such_price() -> None:
    spec = replace(make_spec(), kind=JobKind.DEV_ENVIRONMENT)
    for is_spot, names, asked in ((False, (), ("a.b.org",)), (True, ("*",), ())):
        market = Rentals(1, is_spot, egress=names)
        assert market.plan(replace(spec, egress=asked), PRICE).offers == 0


@pytest.mark.rule("12.29")
def test_a_refusal_names_the_host_alone_if_only_that_is_lacking() -> None:
    market = Rentals(2, egress=("*.b.org",))
    spec = replace(make_spec(), kind=JobKind.DEV_ENVIRONMENT, egress=("*.b.org", "x.com"))
    told = "no owner allows egress to x.com; leave it out, or ask owners: quorate offers --rentals"
    assert market.plan(spec, PRICE).nearest == told
    larger = replace(spec, resources=replace(spec.resources, cpu_millis=999_000))
    assert "the largest run slots" in market.plan(larger, PRICE).nearest


def test_names_are_few_and_in_order() -> None:
    assert not egress.fault_of(("*", "*.hf.co", "huggingface.co"))
    assert "sorted" in egress.fault_of(("huggingface.co", "*.x.org"))
    assert "at most 16" in egress.fault_of(tuple(f"h{number:02}.org" for number in range(17)))
