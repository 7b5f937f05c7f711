"""Tests the names of pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.pool import parse_pool, pool_name, pools_of
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.views import OfferView
from quorate_protocol.units import ZERO_HASH, Address, Signature, Small
from support.offers import a_slot, an_offer

GPUS = st.builds(
    Pool,
    st.sampled_from(["H100 SXM", "RTX 4090", "Some GPU", "a/b", "2x GPU", "GPU/1g"]),
    st.sampled_from(["", "1g.10gb", "1g.5gb+me"]),
    st.integers(1, 8).map(Small),
)
STRANGE = st.builds(Pool, st.text(max_size=99), st.text(max_size=99), st.integers())
WRONG = ["", "0x12", "0x" + "0" * 64, "a" * 999, "0x H100 SXM", "300x H100 SXM", "H100 SXM/A", "-"]
OLD = ["x86_64/v3/AuthenticAMD", "hopper/132/550", "ada/142/550/-/2"]


def offering(pool: Pool, owner: int, price: int = 300_000) -> OfferView:
    offer = an_offer(Address(bytes([owner]) * 20), 1, 600, (a_slot(pool, price, 2),))
    return OfferView(offer, Signature(bytes(65)), 1, 0, 3, True)


@given(st.just(CPUS) | GPUS)
def test_the_name_of_a_pool_parses_back_to_it(pool: Pool) -> None:
    assert pool_name(pool).isprintable()
    assert parse_pool(pool_name(pool)) == parse_pool(f"0x{pool.id().hex()}") == pool.id()


@given(STRANGE)
def test_impossible_pools_are_not_listed(pool: Pool) -> None:
    """A coordinator may list anything, even numbers that do not fit the hashed form."""
    (row,) = pools_of(
        [offering(CPUS, 2), offering(CPUS, 2), offering(CPUS, 3, 200_000)]
        if pool == CPUS
        else [offering(pool, 1), offering(CPUS, 2), offering(CPUS, 2), offering(CPUS, 3, 200_000)]
    )[-1:]
    assert row.name == "cpu" or pool.is_gpu
    if row.name == "cpu":
        assert (len(row.owners), row.slots, row.cheapest) == (2, 6, 200_000)
        assert row.hosts == {"x86_64-v3": 2}


@pytest.mark.parametrize("text", WRONG[1:])
def test_a_wrong_pool_names_the_field_and_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"pool: .*quorate pools") as refused:
        Job(image="x.tar", max_price="1", pool=text)
    assert len(str(refused.value)) < 400


@pytest.mark.rule("2.40")
@pytest.mark.parametrize(
    "text", [*OLD, f"0x{hash_tuple('cpu', 'x86_64', 'v3-gvisor', 'GenuineIntel').hex()}"]
)
def test_a_host_class_of_before_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"pool: .* is a host class.*write cpu"):
        Job(image="x.tar", max_price="1", pool=text)


def test_a_name_of_several_models_asks_for_one() -> None:
    with pytest.raises(UsageError, match=r"several models: .*name one"):
        Job(image="x.tar", max_price="1", pool="A100")


def test_an_empty_name_means_any_pool() -> None:
    assert Job(image="x.tar", max_price="1").host() == ZERO_HASH
