"""Checks URLs that people type when they type them, not at their first use."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused

CHARACTERS_MAX = 2_000


def chain_urls(texts: Sequence[str], example: str) -> tuple[str, str]:
    """Returns the URLs of one or two chain nodes, as --rpc names them; "" for each that is missing.
    Raises Refused for a third one, and for the same one twice, which could compare nothing.
    """
    urls = [web_url("--chain-url", text, example) for text in texts]
    if len(urls) > 2 or len(set(urls)) < len(urls):
        told = "name one chain node, or two of different operators"
        raise Refused(Code.MALFORMED, f"--rpc {' --rpc '.join(urls)[:200]}: {told}")
    first, second = [*urls, "", ""][:2]
    return first, second


def web_url(name: str, text: str, example: str) -> str:
    """Returns `text` without a slash at its end. Raises Refused, which names the flag or field, if
    it is no http or https URL with a host.
    """
    is_text = len(text) <= CHARACTERS_MAX and text.isprintable() and " " not in text
    try:
        place = urlsplit(text)
        is_good = (
            is_text
            and place.scheme in ("http", "https")
            and bool(place.hostname)
            and place.port != 0
        )
    except ValueError:
        is_good = False  # a port above 65535, half an IPv6 address
    if not is_good:
        raise Refused(Code.MALFORMED, f"{name} {text[:200]!r}: it is a URL, such as {example}")
    return text.rstrip("/")
