"""Reads and checks the owner's choices about GPUs: `--gpu-slots` and `--gpu-price`."""

import re

from msgspec import Struct

from quorate_protocol.messages.offer import PRICE_MAX
from quorate_protocol.money_input import micro_usd
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price, usd

CHOICES_MAX = 16
SIZE_MAX = 64  # GPUs of one slot
COUNT_MAX = 255
ALL = "all"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+/-]{0,63}", re.ASCII)
_LAYOUT = re.compile(r"(?:(?P<model>[^:]+):)?(?P<size>[0-9]{1,3})(?:x(?P<count>[0-9]{1,3}))?")
WHOLE_DIGITS_MAX = 7
SLOTS_FORM = 'write "none", or [MODEL:]GPUS[xSLOTS] such as 1, 2x4 or H100:8'
PRICE_FORM = "write [MODEL=]USD such as 1.20 or H100=2.50, with at most six decimals"


class GpuLayout(Struct, frozen=True):
    """`count` GPU slots with `size` GPUs each."""

    model: str = ""  # as people call it; "" = GPUs of any model
    size: int = 1  # GPUs of one slot
    count: int = 0  # 0 = as many slots as there are GPUs for


class GpuPrice(Struct, frozen=True):
    """The price of one GPU and hour, in micro-USD."""

    price: Price
    model: str = ""  # "" = every model that has no price of its own


EVERY_GPU = (GpuLayout(),)
"""Each GPU is a slot of its own."""


def layouts_of(texts: list[str]) -> tuple[GpuLayout, ...]:
    """Reads `--gpu-slots`: `none`, or GPUs of one slot and number of slots. Raises Refused."""
    if texts == ["none"]:
        return ()
    return tuple(_layout(text) for text in texts) or EVERY_GPU


def prices_of(texts: list[str]) -> tuple[GpuPrice, ...]:
    """Reads `--gpu-price`, in USD for one GPU and hour. Raises Refused."""
    return tuple(_price(text) for text in texts)


def with_price(prices: tuple[GpuPrice, ...], new: GpuPrice) -> tuple[GpuPrice, ...]:
    """Adds a price, or replaces the price of the same name."""
    kept = tuple(item for item in prices if item.model.lower() != new.model.lower())
    return (*kept, new)


def price_for(amount: str, gpu: str) -> GpuPrice:
    """Returns a price; `gpu` "all" is every model that has no price of its own. Raises Refused."""
    return prices_of([amount if gpu == ALL else f"{gpu}={amount}"])[0]


def check(layouts: tuple[GpuLayout, ...], prices: tuple[GpuPrice, ...], price_floor: Price) -> None:
    """Raises Refused with the field for choices that cannot be offered."""
    for name, count in (("gpuSlots", len(layouts)), ("gpuPrices", len(prices))):
        if count > CHOICES_MAX:
            raise Refused(Code.MALFORMED, f"{name}: {count} are named, at most {CHOICES_MAX}")
    for layout in layouts:
        _check_model("gpuSlots.model", layout.model)
        if not (1 <= layout.size <= SIZE_MAX and 0 <= layout.count <= COUNT_MAX):
            raise Refused(
                Code.MALFORMED,
                f"gpuSlots: {layout.count} of {layout.size}: name 1 to {SIZE_MAX} GPUs a slot, "
                f"at most {COUNT_MAX} slots; {SLOTS_FORM}",
            )
    for price in prices:
        _check_model("gpuPrices.model", price.model)
        if not 0 < price.price <= PRICE_MAX // SIZE_MAX:
            raise Refused(
                Code.MALFORMED,
                f"gpuPrices: {usd(price.price)} is not above 0 and at most "
                f"{usd(PRICE_MAX // SIZE_MAX)} USD; {PRICE_FORM}",
            )
        if price.price < price_floor:
            raise Refused(
                Code.MALFORMED,
                f"gpuPrices: {usd(price.price)} is below the price floor of {usd(price_floor)}: "
                "the provider would decline every job",
            )


def _layout(text: str) -> GpuLayout:
    match = _LAYOUT.fullmatch(text.strip())
    if match is None or match["count"] == "0":
        raise Refused(Code.MALFORMED, f"--gpu-slots {text[:80]!r}: {SLOTS_FORM}")
    return GpuLayout((match["model"] or "").strip(), int(match["size"]), int(match["count"] or 0))


def _price(text: str) -> GpuPrice:
    model, equals, amount = text.strip().rpartition("=")
    if equals and not model.strip():
        raise Refused(Code.MALFORMED, f"--gpu-price {text[:80]!r}: {PRICE_FORM}")
    try:
        micro = micro_usd(amount, WHOLE_DIGITS_MAX)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"--gpu-price: {error}; {PRICE_FORM}") from error
    return GpuPrice(Price(micro), model.strip())


def _check_model(field: str, model: str) -> None:
    if model and not _MODEL.fullmatch(model):
        raise Refused(
            Code.MALFORMED, f"{field}: {model[:80]!r} is no name of a GPU; write it such as H100"
        )
