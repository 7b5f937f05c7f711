"""What an offer says, the matcher and the node decide alike whether a job fits (PROTOCOL 4.82)."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate_attestation import fits
from quorate_node.core import bidding
from quorate_node.core.terms import Terms
from quorate_node.machine.run_slots import with_cuda
from quorate_protocol.messages.job_spec import GpuRequest, Input, JobSpec, Resources
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT, BYTES_OF_SLOT_MAX, Offer, in_steps
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.rules import quotes
from quorate_protocol.units import DeclineReason, JobKind
from quorate_protocol.values import replace
from support.markets.gpu_provider import ONE, gpu_slots, gpu_terms
from support.markets.provider_world import PROVIDER, make_assignment, make_spec
from support.offers import an_offer

GIB = 1 << 30
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
PLAIN = replace(make_spec(), image=CID, image_bytes=GIB)
REGISTRY = f"docker.io/tool@sha256:{'ab' * 32}"
BEYOND = BYTES_OF_SLOT_MAX + 1


def asks(**changes: object) -> JobSpec:
    return replace(PLAIN, resources=replace(Resources(), **changes))  # type: ignore[arg-type]


def on_gpu(**changes: int) -> JobSpec:
    return asks(gpu=GpuRequest(1, "", 0, **changes))


def terms_of(sandbox: str, images: tuple[str, ...], cuda: str, kinds: tuple[JobKind, ...]) -> Terms:
    terms = gpu_terms(with_cuda(gpu_slots(ONE, ("GPU-a",)), cuda))
    policy = replace(terms.policy, images=images, kinds=kinds)
    return replace(terms, sandbox=Sandbox(sandbox), policy=policy)


def offer_of(terms: Terms, store_bytes: int) -> Offer:
    said = terms.promise(store_bytes, BANDWIDTH_DEFAULT)
    return replace(
        an_offer(PROVIDER, 1, 0, terms.slots),
        sandboxes=said.sandboxes,
        kinds=said.kinds,
        images=said.images,
        store_bytes=said.store_bytes,
    )


def by_node(spec: JobSpec, terms: Terms, store_bytes: int) -> bidding.DeclineCause | None:
    """What the node's own check says of the job in the run slot for it."""
    slot = terms.slots[1 if spec.resources.gpu else 0]
    message = replace(make_assignment(spec), pool=slot.pool.id())
    return bidding.decide(bidding.Bid(message, spec, terms, store_bytes=store_bytes))


TASK = (JobKind.TASK,)


@dataclass(frozen=True)
class Provider:
    """What a provider offers, beside its run slots."""

    sandbox: str = "docker-runc"
    images: tuple[str, ...] = ()
    cuda: str = "12.4"
    kinds: tuple[JobKind, ...] = TASK
    store_bytes: int = 2 * GIB


FROM_REGISTRY = replace(PLAIN, image=REGISTRY, image_bytes=0)
LARGE_INPUT = replace(PLAIN, inputs=(Input(CID, "/inputs/x", 2 * GIB),))
CASES = (  # job spec, provider -> reason and a word of the sentence
    (PLAIN, Provider(), None, ""),
    (PLAIN, Provider(images=(CID, REGISTRY)), None, ""),
    (PLAIN, Provider(images=(REGISTRY,)), DeclineReason.IMAGE, "list"),
    (PLAIN, Provider(store_bytes=GIB), DeclineReason.RESOURCES, "store"),
    (PLAIN, Provider(kinds=()), DeclineReason.KIND, "kind"),
    (FROM_REGISTRY, Provider("bwrap", cuda=""), DeclineReason.SANDBOX, "CID"),
    (FROM_REGISTRY, Provider("process", cuda=""), DeclineReason.SANDBOX, "CID"),
    (FROM_REGISTRY, Provider(cuda="", store_bytes=GIB), None, ""),
    (on_gpu(cuda_min=124), Provider(), None, ""),
    (on_gpu(cuda_min=125), Provider(), DeclineReason.RESOURCES, "CUDA 12.4"),
    (on_gpu(cuda_min=110), Provider(cuda=""), DeclineReason.RESOURCES, "names no CUDA"),
    (LARGE_INPUT, Provider(cuda="", store_bytes=3 * GIB), DeclineReason.RESOURCES, "store"),
    (asks(scratch_bytes=2 << 40), Provider(cuda=""), DeclineReason.RESOURCES, "scratch"),
)


@pytest.mark.rule("4.82")
@pytest.mark.parametrize(("spec", "provider", "why", "word"), CASES)
def test_a_job_that_an_offer_does_not_promise_names_what_is_missing(
    spec: JobSpec, provider: Provider, why: DeclineReason | None, word: str
) -> None:
    store = provider.store_bytes
    terms = terms_of(provider.sandbox, provider.images, provider.cuda, provider.kinds)
    offer, slot = offer_of(terms, store), terms.slots[1 if spec.resources.gpu else 0]
    found = next(iter(fits.shortfalls(spec, slot, offer)), None)
    assert (found and found[0]) == why and word in (found[1] if found else "")
    declined = by_node(spec, terms, store)
    assert (declined and (declined.reason, declined.text)) == found


@pytest.mark.rule("4.82")
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([PLAIN, on_gpu(), on_gpu(cuda_min=124), on_gpu(cuda_min=990)]),
    st.sampled_from([CID, REGISTRY]),
    st.integers(1, 4 * GIB),
    st.sampled_from(["docker-runc", "docker-runsc", "noop", "bwrap", "process"]),
    st.lists(st.sampled_from([CID, REGISTRY]), max_size=2),
    st.sampled_from(["", "11.8", "12.4"]),
    st.integers(0, 8 * GIB),
)
def test_the_matcher_and_the_node_agree_about_every_job(
    spec: JobSpec, image: str, size: int, sandbox: str, images: list[str], cuda: str, room: int
) -> None:
    spec = replace(spec, image=image, image_bytes=size if image == CID else 0)
    terms, store = terms_of(sandbox, tuple(images), cuda, TASK), in_steps(room)
    slot = terms.slots[1 if spec.resources.gpu else 0]
    is_declined = by_node(spec, terms, store) is not None
    assert is_declined != fits.fits(spec, slot, offer_of(terms, store))


def test_the_room_of_a_store_is_said_in_coarse_steps() -> None:
    sizes = [0, 3, 5 * GIB, 5 * GIB + 1, 6 * GIB - 1, 6 * GIB, BEYOND]
    steps = [0, 3, 5 * GIB, 5 * GIB, 5 * GIB, 6 * GIB, BYTES_OF_SLOT_MAX]
    assert [in_steps(size) for size in sizes] == steps


MODEL = replace(PLAIN, inputs=(Input(CID, "/inputs/x", 140 * 10**9),))


@pytest.mark.rule("4.4", "4.44")
@pytest.mark.parametrize(
    ("spec", "bandwidth", "does_fit"),
    [
        (PLAIN, 1 << 20, False),  # 1 GiB within 600 s
        (PLAIN, 2 << 20, True),
        (MODEL, 100 << 20, False),
        (replace(MODEL, start_within=quotes.start_within_default(141 * 10**9)), 9 << 20, False),
        (replace(MODEL, start_within=quotes.start_within_default(141 * 10**9)), 12 << 20, True),
    ],
)
def test_a_job_fits_only_who_can_fetch_it_within_its_time(
    spec: JobSpec, bandwidth: int, does_fit: bool
) -> None:
    slot = gpu_terms().slots[0]
    offer = replace(offer_of(gpu_terms(), 1 << 40), bandwidth=bandwidth)
    why = [text for _, text in fits.shortfalls(spec, slot, offer)]
    assert ("start_within" in "".join(why)) != does_fit
    assert (bandwidth >= quotes.bandwidth_least(spec)) == does_fit, "the matcher's columns agree"
    assert quotes.fetch_seconds_max(spec, bandwidth) <= spec.start_within
