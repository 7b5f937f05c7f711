"""URLs that people type: what is none is said where it was typed, not where it is first used."""

from urllib.parse import urlsplit

from quorate_protocol.refusals import Code, Refused


def web_url(name: str, text: str, example: str) -> str:
    """`text` without a slash at its end. `Refused` names the flag or field when it is no http or https URL with a host."""
    try:
        place = urlsplit(text)
        is_good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0 and not any(map(str.isspace, text))
    except ValueError:
        is_good = False  # a port above 65535, half an IPv6 address
    if not is_good:
        raise Refused(Code.MALFORMED, f"{name} {text!r}: it is a URL, such as {example}")
    return text.rstrip("/")
