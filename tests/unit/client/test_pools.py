"""Tests the names of pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.pool import class_name, classes_of, parse_pool
from quorate_protocol.messages.classes import (
    CPU_ARCHITECTURES,
    CPU_LEVELS,
    CPU_VENDORS,
    GPU_ARCHITECTURES,
    Pool,
)
from quorate_protocol.messages.views import OfferView
from quorate_protocol.units import ZERO_HASH, Address, Signature, Small
from support.offers import a_slot, an_offer

CPUS = st.builds(
    Pool,
    st.sampled_from(CPU_ARCHITECTURES),
    st.sampled_from(CPU_LEVELS),
    st.sampled_from(CPU_VENDORS),
)
GPUS = st.builds(
    Pool,
    st.sampled_from(GPU_ARCHITECTURES),
    sm_count=st.integers(1, 65_535),
    mig_profile=st.sampled_from(["", "1g.10gb", "a/b", "-", "\x1b[2J"]),
    driver_branch=st.sampled_from(["470", "550"]),
    world_size=st.integers(1, 8).map(Small),
)
STRANGE = st.builds(
    Pool,
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    st.integers(),
    st.text(),
    st.text(),
)
NO_CLASS = "v100 x86_64 x86_64/v9/AuthenticAMD hopper/550 hopper/0/550 hopper/99999999/550"
NO_GROUP = "hopper/132/550/-/0 hopper/132/550/-/1/1 hopper/²/550"
WRONG = [*f"{NO_CLASS} {NO_GROUP} 0x12".split(), "0x" + "0" * 64, "a" * 999]


def offering(host: Pool, owner: int, price: int = 300_000) -> OfferView:
    offer = an_offer(Address(bytes([owner]) * 20), 1, 600, (a_slot(host, price, 2),))
    return OfferView(offer, Signature(bytes(65)), 1, 0, 3, True)


@given(CPUS | GPUS)
def test_a_class_name_parses_back_to_its_class(host: Pool) -> None:
    assert class_name(host).isprintable()
    assert parse_pool(class_name(host)) == parse_pool(f"0x{host.id().hex()}") == host.id()


@given(STRANGE)
def test_impossible_classes_are_not_listed(host: Pool) -> None:
    """A coordinator may list anything, even numbers that do not fit the hashed form."""
    known = Pool("x86_64", "v3", "AuthenticAMD")
    (row,) = classes_of(
        [offering(host, 1), offering(known, 2), offering(known, 2), offering(known, 3, 200_000)]
    )
    assert row.name == "x86_64/v3/AuthenticAMD"
    assert (len(row.owners), row.slots, row.cheapest) == (2, 6, 200_000)


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_class_names_the_field_and_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"pool: .*quorate classes") as refused:
        Job(image="x.tar", max_price="1", pool=text)
    assert len(str(refused.value)) < 400


def test_an_empty_name_means_any_class() -> None:
    assert Job(image="x.tar", max_price="1").host() == ZERO_HASH
