"""How many owners have others who can repeat their jobs, and what a driver's update costs an owner.

`verifiable_share`: share of owners in whose reach are at least three owners, with their own. The
mix is a guess: 40 models by a Zipf law, five driver branches, four sizes of slots, one kind of slot
an owner. Its orders of magnitude are what counts. The rules:

- `today`: architecture, SM count, driver branch and GPUs in a slot are the same
- `pool`: the product and the GPUs in a slot are the same (no slot is a MIG partition here)
- `union`: all that fit a job for one GPU by the name that people use, such as H100 or A100
- `union_by_memory`: all that fit a job for one GPU with as much memory as its owner's GPU has

`driver_update`: an owner of eight GPUs installs driver 570 over 550. Its stake slots that are in
other classes after that cost transactions, and wait for the stake of the old ones.

`python tests/bench/classes.py --json` prints one JSON line.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from quorate_attestation.catalogue import Model, models
from quorate_attestation.gpu_match import names_called
from quorate_contracts.account import goals
from quorate_contracts.account.goals import StakeSlot
from quorate_contracts.deploy import Contracts, Deployment
from quorate_node.base.config import Config
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.machine.gpu_slots import GpuSlots, lay_out
from quorate_protocol.limits import MAINNET, OWNERS_MIN_QUORUM
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, Price, Seconds, UnixSeconds
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import recorded

OWNERS = (30, 100, 300, 1000)
WANTED = {30: 0.70, 100: 0.95, 300: 0.99}
MARKETS = 200  # of each size
EXPONENT = 0.9
POPULAR = (
    *("RTX 4090", "H100 SXM", "A100 SXM 80GB", "RTX 3090", "L40S", "H200 SXM", "RTX A6000"),
    *("A100 PCIe 80GB", "RTX 5090", "H100 PCIe", "L4", "A10G", "T4", "RTX 6000 Ada", "B200 SXM"),
    *("A100 SXM 40GB", "RTX A5000", "A10", "L40", "A40", "H100 NVL", "RTX 3080 10GB", "RTX 4080"),
    *("RTX A4000", "A100 PCIe 40GB", "RTX PRO 6000 Blackwell", "RTX 3090 Ti", "GH200", "RTX 5080"),
    *("RTX 4080 SUPER", "H200 NVL", "RTX A4500", "A30", "RTX 4070 Ti SUPER", "RTX 4090 D"),
    *("RTX 5070 Ti", "RTX 2080 Ti", "Quadro RTX 6000", "RTX 4000 Ada", "GB10"),
)
BRANCHES = {"550": 0.4, "570": 0.3, "535": 0.15, "580": 0.1, "525": 0.05}
SIZES = {1: 0.6, 2: 0.2, 4: 0.1, 8: 0.1}  # GPUs in a slot
Kind = tuple[Model, str, int]
"""What an owner offers: model, driver branch, GPUs in a slot."""


def market(owners: int, chance: random.Random) -> list[Kind]:
    """One kind for each owner."""
    by_name = {model.name: model for model in models()}
    weights = [place**-EXPONENT for place in range(1, len(POPULAR) + 1)]
    drawn = chance.choices([by_name[name] for name in POPULAR], weights, k=owners)
    branches = chance.choices(list(BRANCHES), list(BRANCHES.values()), k=owners)
    sizes = chance.choices(list(SIZES), list(SIZES.values()), k=owners)
    return list(zip(drawn, branches, sizes, strict=True))


def old_class(kind: Kind) -> Any:
    model, branch, size = kind
    return model.architecture, model.sm_count, branch, size


def one_pool(kind: Kind) -> Any:
    return kind[0].name, kind[2]


def family(kind: Kind) -> Any:
    return _called_alike(kind[0].name)


@cache
def _called_alike(name: str) -> frozenset[str]:
    """All models that the widest of its names means: "A100" of an A100 PCIe 40GB."""
    [model] = (each for each in models() if each.name == name)
    return max((names_called(each) for each in (name, *model.aliases)), key=len)


BY_MEMORY = "union_by_memory"
RULES: dict[str, Callable[[Kind], Any]] = {
    "today": old_class,
    "pool": one_pool,
    "union": family,
    BY_MEMORY: lambda kind: kind[0].vram_bytes,
}


def verifiable_share(owners: int, markets: int) -> dict[str, float]:
    """Of each rule, the mean over random markets."""
    chance = random.Random(26)
    found = Counter[str]()
    for _ in range(markets):
        kinds = market(owners, chance)
        for name, key in RULES.items():
            counts = Counter(key(kind) for kind in kinds)
            reach = _at_least(counts) if name == BY_MEMORY else counts
            found[name] += sum(
                count for mine, count in counts.items() if reach[mine] >= OWNERS_MIN_QUORUM
            )
    return {name: round(found[name] / (owners * markets), 3) for name in RULES}


def _at_least(counts: Mapping[int, int]) -> dict[int, int]:
    """Count of owners with so much memory or more."""
    return {mine: sum(count for size, count in counts.items() if size >= mine) for mine in counts}


def pool_of(slots: GpuSlots) -> Hash32:
    """In which class of the chain these run slots have their stake."""
    return slots.pool.id()


def staked(inventory: GpuInventory) -> Mapping[Hash32, int]:
    """Count of stake slots that an owner of these GPUs has in each class."""
    config = Config(home=Path("/"), coordinators=(), gpu_prices=(GpuPrice(Price(1)),))
    found = Counter[Hash32]()
    for slots in lay_out(inventory, config).classes:
        found[pool_of(slots)] += len(slots.groups)
    return found


def update_cost(before: GpuInventory, after: GpuInventory) -> dict[str, int]:
    """What the owner sends, and how long its stake is in no class that it can offer."""
    old, new = Counter(staked(before)), Counter(staked(after))
    contracts = Contracts.of(_DEPLOYMENT)
    surplus = [
        StakeSlot(pool, place, BlockNumber(1), UnixSeconds(0))
        for pool, count in (old - new).items()
        for place in range(count)
    ]
    closed = [replace(slot, back_at=UnixSeconds(1)) for slot in surplus]
    calls = [
        *goals.close_slots(contracts, surplus),
        *goals.take_back(contracts, closed, UnixSeconds(1)),
        *goals.open_slots(contracts, new - old, Amount(0)),
    ]
    waits = MAINNET.unbond_after if new - old else Seconds(0)
    return {"transactions": len(calls), "seconds_off_offer": int(waits)}


_PLACES = [Address(bytes([number]) * 20) for number in range(1, 8)]
_DEPLOYMENT = Deployment(
    31337, BlockNumber(0), MAINNET.name, *_PLACES, bytes(96), MAINNET.beacon_period, 1
)


def measure(markets: int, sizes: tuple[int, ...] = OWNERS) -> dict[str, object]:
    eight = recorded("eight-h100-sxm")
    drivers = [replace(eight, driver_version=f"{branch}.10") for branch in ("550", "570")]
    return {
        "mix": {"models": POPULAR, "exponent": EXPONENT, "branches": BRANCHES, "sizes": SIZES},
        "markets": markets,
        "verifiable_share": {count: verifiable_share(count, markets) for count in sizes},
        "wanted": WANTED,
        "driver_update": update_cost(drivers[0], drivers[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="classes.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same: one JSON line")
    parser.add_argument("--markets", type=int, default=MARKETS, help="of each size")
    print(json.dumps(measure(parser.parse_args().markets)))


if __name__ == "__main__":
    main()
