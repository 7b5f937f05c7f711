"""One provider's offer in one host class as a row of numbers, and what a job asks of it."""

from typing import NamedTuple

# Features of a row. A row without any is a tombstone: it was replaced or removed.
PRESENT, FREE, PRICED, STAKED, MIXED, CACHING, STRUCK = (1 << bit for bit in range(7))
KIND_BIT = 8  # and up: job kinds

SPREAD_BITS = 24
SPREAD_MASK = (1 << SPREAD_BITS) - 1
PRICE_LIMIT = (1 << 40) - 1


class Row(NamedTuple):
    """One provider in one class. If a machine's GPUs differ (MIXED), `vram` is the largest and
    `model` is 0.
    """

    key: int  # price << 24 | position in the ring of that price
    bits: int
    until: int  # the offer is live before this second
    memory: int
    cores: int
    vram: int = 0
    gpus: int = 0
    model: int = 0  # see `Bucket.model_number`
    mixed: tuple[tuple[str, int], ...] = ()  # (model, VRAM) of each GPU, when they differ


class Needs(NamedTuple):
    """What a job asks of a machine, without the price. `model` is in lower case; "" means any.

    It is a tuple because it serves as a dictionary key very often.
    """

    bits: int
    memory: int
    cores: int
    gpus: int = 0
    vram: int = 0
    model: str = ""


def key_of(price: int, number: int) -> int:
    """The sorting key of a row: its price, then its position in the ring of that price.

    Positions are multiples of the golden ratio by registration `number`. So neighbours in the ring
    registered at different times, and gaps are even. Positions repeat after 2^24 accounts.
    """
    return min(price, PRICE_LIMIT) << SPREAD_BITS | number * 0x9E3779 & SPREAD_MASK


def count_fitting(gpus: tuple[tuple[str, int], ...], needs: Needs) -> int:
    """How many of a machine's GPUs fit."""
    return sum(1 for model, vram in gpus if vram >= needs.vram and needs.model in ("", model))
