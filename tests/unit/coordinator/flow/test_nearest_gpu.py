"""A plan that no GPU offer fits names the nearest one, its price and what it lacks."""

import pytest

from quorate_coordinator.core.matching.nearest_offer import nearest_gpu
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.job_spec import GpuRequest, JobSpec, Resources
from quorate_protocol.messages.offer import Offer, SlotOffer
from quorate_protocol.units import Address, Small, UnixSeconds
from quorate_protocol.values import replace
from support.messages import a_spec
from support.offers import a_slot, an_offer

GIB = 1 << 30
ADA = Pool("L40S", "", Small(1))
AMPERE = Pool("A100 SXM 80GB", "", Small(4))


def offered(number: int, *slots: SlotOffer) -> Offer:
    return an_offer(Address(bytes([number]) * 20), 1, UnixSeconds(10**9), slots)


BOOK = (
    offered(1, a_slot(ADA, 900_000)),
    offered(2, a_slot(ADA, 800_000)),
    offered(3, a_slot(AMPERE, 4_000_000, vram_bytes=80 * GIB)),
    offered(4, a_slot(CPUS, 10_000)),
)


def asking(count: int = 1, model: str = "", vram: int = 0, **more: int) -> JobSpec:
    request = GpuRequest(count, model, vram, **more)
    return replace(a_spec("gpus"), resources=Resources(gpu=request))


@pytest.mark.rule("4.37")
@pytest.mark.parametrize(
    ("spec", "nearest", "lacks"),
    [
        (asking(model="H100"), "1x L40S 52 GB (reported) at 0.80 USD", "model is L40S, the job"),
        (
            asking(2, "L40S"),
            "1x L40S 52 GB (reported) at 0.80 USD",
            "has 1 GPUs, the job asks for 2",
        ),
        (
            asking(8, "A100"),
            "4x A100 SXM 80GB (reported) at 4.00 USD",
            "has 4 GPUs, the job asks for 8",
        ),
        (asking(vram=90 * GIB), "4x A100 SXM 80GB (reported) at 4.00 USD", "GB of memory"),
        (asking(4, compute_capability_min=89), "4x A100", "is 8.0, the job asks for 8.9"),
        (
            replace(asking(model="L40S"), sandbox="docker-runsc"),
            "1x L40S 52 GB (reported) at 0.80 USD",
            "its sandbox is noop, the job asks for docker-runsc",
        ),
        (
            replace(
                asking(), resources=Resources(999_000, 999 * GIB, gpu=GpuRequest(1, "A100", 0))
            ),
            "4x A100",
            "64 cores, the job asks for 999",
        ),
    ],
)
def test_the_nearest_offer_is_named_with_what_it_lacks(
    spec: JobSpec, nearest: str, lacks: str
) -> None:
    found = nearest_gpu(BOOK, spec)
    assert f"the nearest has {nearest}" in found and lacks in found


def test_without_any_gpu_the_plan_says_so() -> None:
    assert nearest_gpu(BOOK[3:], asking()) == "no GPU is on offer"
    free = offered(5, a_slot(ADA, 0))
    assert nearest_gpu((free,), asking()) == "no GPU is on offer", "an offer without a price"
