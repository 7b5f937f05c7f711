"""`quorate node status` shows each kind of slot with its price, per GPU-hour too."""

import json

from quorate_node.cli.status import lease_line, slot_line
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import RunSlots
from quorate_node.status.status import status_of
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import HostClass
from quorate_protocol.units import Small
from quorate_protocol.values import replace
from support.markets.gpu_provider import PAIR, assign, gpu_driver, gpu_slots, gpu_spec
from support.markets.provider_world import OPERATOR, make_terms
from support.offers import a_slot

FOUR_GPUS = HostClass("hopper", sm_count=132, driver_branch="550", world_size=Small(4))


def test_status_shows_the_price_per_gpu_hour_of_gpu_slots() -> None:
    gpus = a_slot(FOUR_GPUS, 10_000_001, 2, gpu="H100")
    plain, groups = make_terms(2).classes, (tuple("ABCD"), tuple("EFGH"))
    classes = (*plain, RunSlots(gpus, plain[0].resources, groups))
    core = ProviderCore(replace(make_terms(), classes=classes))
    tree = json.loads(canonical.encode(status_of(core, OPERATOR.address, "http://127.0.0.1:1", {})))
    assert [slot_line(item) for item in tree["slots"]] == [
        "2/2 run slots free, at 0.10 USD per slot-hour",
        # Rounded up, so that nobody pays more than is shown.
        "2/2 run slots of 4 x H100 free, at 10.000001 USD per slot-hour (2.500001 per GPU-hour)",
    ]


def test_status_shows_which_gpus_a_lease_has() -> None:
    driver = gpu_driver(gpu_slots(PAIR, ("GPU-A", "GPU-B")))
    first = assign(driver, 1, PAIR, gpu_spec(2))
    state = status_of(driver.core, OPERATOR.address, "http://127.0.0.1:1", {})
    [lease] = json.loads(canonical.encode(state))["leases"]
    assert lease_line(lease).endswith(" Accepted on GPU-A, GPU-B") and first.hex()[:8] in str(lease)
