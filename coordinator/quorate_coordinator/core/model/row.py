"""One provider's offer in one pool as a row of numbers, and a job's needs in the same
form.
"""

import zlib
from functools import lru_cache
from typing import NamedTuple

from quorate_protocol.units import ZERO_HASH, Address, Hash32

# Features of a row. A row without any is a tombstone: it was replaced or removed.
# PRESENT: its price is that of all but spot rentals.
PRESENT, FREE, PRICED, STAKED, CACHING, STRUCK, ATTESTED, REGISTRY = (1 << bit for bit in range(8))
OPEN_EGRESS = 1 << 41  # its owner lets rentals reach every public host
LISTED = 1 << 40  # it runs only the images of its owner's list
ON_DEMAND = 1 << 42  # it has an on-demand price
SPOT = 1 << 43  # its price is that of spot rentals
ROOM = 1 << 44  # for a rental on demand: free, or a spot rental would end for it
KIND_BIT = 8  # and up: job kinds
SANDBOX_BIT = 16  # and up: sandboxes, in the order of `ports.Sandbox`

ADDRESS_BYTES = 20
SPREAD_BITS = 24
SPREAD_MASK = (1 << SPREAD_BITS) - 1
PRICE_LIMIT = (1 << 40) - 1


class Row(NamedTuple):
    """One provider in one class. The numbers are those of one run slot. A provider with two prices
    has a second row for spot rentals (`spot_row`).
    """

    key: int  # price << 24 | position in the ring of that price
    bits: int
    until: int  # the offer is live before this second
    memory: int  # bytes
    cpu_millis: int
    vram: int = 0  # bytes of one GPU
    gpus: int = 0  # GPUs of one slot
    model: int = 0  # see `model_number`
    capability: int = 0  # compute capability of a GPU, ten times the number
    scratch: int = 0  # bytes
    output: int = 0  # bytes
    inputs: int = 0  # bytes of image and inputs
    cuda: int = 0  # ten times the newest CUDA of the driver
    store: int = 0  # bytes of image, inputs and output
    bandwidth: int = 0  # bytes a second of fetches
    record: int = 0  # what the provider's reputation adds to the price's factor, in ppm
    images: tuple[Hash32, ...] = ()  # the only ones that it runs; empty = any
    egress: tuple[str, ...] = ()  # hosts that its owner lets rentals reach


class Needs(NamedTuple):
    """What a job asks of a run slot, without the price. Any of `models` will do (lower case,
    sorted); none means any. A tuple, because it serves as a dictionary key very often.
    """

    bits: int
    memory: int
    cpu_millis: int
    gpus: int = 0
    vram: int = 0
    models: tuple[str, ...] = ()
    capability: int = 0
    scratch: int = 0
    output: int = 0
    inputs: int = 0
    cuda: int = 0
    store: int = 0
    bandwidth: int = 0
    image: Hash32 = ZERO_HASH  # its digest; zero = any
    egress: tuple[str, ...] = ()  # hosts that it wants to reach


def spot_row(owner: Address) -> Address:
    """Names the row with the spot price of an owner that has two prices: the owner comes first."""
    return Address(owner + b"spot")


def key_of(price: int, number: int) -> int:
    """The price, then the position in the ring of that price.

    Positions are multiples of the golden ratio by registration `number`, so neighbours in the ring
    have registered at different times. They repeat after 2^24 accounts.
    """
    return min(price, PRICE_LIMIT) << SPREAD_BITS | number * 0x9E3779 & SPREAD_MASK


@lru_cache(maxsize=1024)
def model_number(model: str) -> int:
    """0 for "". A checksum, so that no table of names can be filled up. A provider that makes two
    names collide gains nothing: it could as well offer the other name.
    """
    return zlib.crc32(model.encode(errors="replace")) & 0x7FFFFFFF if model else 0
