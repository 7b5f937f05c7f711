"""Reads values that an owner types. Each function raises Refused, which names the flag or field."""

from collections.abc import Callable, Sequence

from quorate_content.dag.cid import typed_cid
from quorate_protocol.messages import egress
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.money_input import micro_usd
from quorate_protocol.quantity_input import size_bytes, span_seconds
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Price
from quorate_runtime.http.urls import web_url

WHOLE_DIGITS_MAX = 6  # of a typed amount of USD


def usd_price(text: str, field: str = "price") -> Price:
    """Returns micro-USD. Raises Refused for over six decimals, negative or very large numbers."""
    try:
        return Price(micro_usd(text, WHOLE_DIGITS_MAX))
    except ValueError as error:
        raise Refused(Code.BAD_AMOUNT, f"{field}: {error}") from error


def bytes_of(text: str, field: str) -> int:
    return _quantity(size_bytes, text, field)


def seconds_of(text: str, field: str) -> int:
    return _quantity(span_seconds, text, field)


def _quantity(read: Callable[[str], int], text: str, field: str) -> int:
    try:
        return read(text)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{field}: {error}") from error


def address_of(text: str, option: str) -> Address:
    """An empty text is the zero address."""
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""  # the length check below refuses it
    if text and len(value) != 20:
        raise Refused(
            Code.MALFORMED, f"{option} {text!r}: an address is 0x and 40 hexadecimal digits"
        )
    return Address(value) if text else ZERO_ADDRESS


def url_like(example: str) -> Callable[[str, str], str]:
    return lambda text, option: web_url(option, text, example)


def urls_like(example: str) -> Callable[[Sequence[str], str], tuple[str, ...]]:
    return lambda texts, option: tuple(
        dict.fromkeys(web_url(option, text, example) for text in texts)
    )


def egress_of(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """`none` alone allows no host."""
    if "none" in texts and len(texts) > 1:
        raise Refused(Code.MALFORMED, f"{option}: none goes with no other host; leave one out")
    names = () if tuple(texts) == ("none",) else tuple(sorted({text.lower() for text in texts}))
    if fault := egress.fault_of(names):
        raise Refused(Code.MALFORMED, f"{option}: {fault}; or none")
    return names


def images_of(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Refuses a tag, because no job spec has one."""
    return tuple(_image(text, option) for text in texts)


def _image(text: str, option: str) -> str:
    try:
        text = str(typed_cid(text)) if text.startswith("Qm") else text
        image_digest(text)
    except Refused as error:
        raise Refused(
            Code.MALFORMED,
            f"{option} {text!r}: use name@sha256:digest, or the CID of an image archive",
        ) from error
    return text
