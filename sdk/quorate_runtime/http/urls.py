"""Checks URLs that people type when they type them, not at their first use."""

from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused

CHARACTERS_MAX = 2_000


def web_url(name: str, text: str, example: str) -> str:
    """Returns `text` without a slash at its end.

    Raises Refused, which names the flag or field, if it is no http or https URL with a host.
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
