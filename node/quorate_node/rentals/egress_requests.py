"""Reads a request to the egress proxy strictly, and writes what goes on to its target.

What two programs could read differently is refused (PROTOCOL 12.31). The proxy writes a plain
request by itself, with one target, one length and `Connection: close`. So nothing hides behind it.
"""

import re
from dataclasses import dataclass

from quorate_protocol.messages.egress import is_host

HEAD_BYTES_MAX = 16 << 10
HEADERS_MAX = 100
HEAD_END = b"\r\n\r\n"
HTTP_PORT = 80
_LINE = re.compile(r"([A-Z]{1,16}) ([!-~]{1,8192}) HTTP/1\.[01]")
_TUNNEL = re.compile(r"([^\s:/@\[\]]{1,255}):([0-9]{1,5})")
_URL = re.compile(r"(?i:http)://([^\s:/?#@\[\]]{1,255})(?::([0-9]{1,5}))?([/?][!-~]*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_NOT_FORWARDED = frozenset(
    {
        *("host", "content-length", "connection", "proxy-connection", "keep-alive", "te"),
        *("trailer", "upgrade", "expect", "proxy-authorization", "proxy-authenticate"),
    }
)


class NotTaken(Exception):
    """The proxy refuses a request: its status, and what the program inside may read."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status

    def answer(self) -> bytes:
        body = f"egress proxy: {self}\n".encode("ascii", "replace")
        head = f"HTTP/1.1 {self.status} {str(self)[:80]}\r\nContent-Type: text/plain\r\n".encode(
            "ascii", "replace"
        )
        return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


@dataclass(frozen=True, slots=True)
class Request:
    """`head` goes to the target, before `body_bytes` of what follows. Both are empty for a tunnel,
    whose bytes all go on.
    """

    host: str
    port: int
    is_tunnel: bool
    head: bytes = b""
    body_bytes: int = 0


def parse(head: bytes) -> Request:
    """`head` ends with an empty line. Raises NotTaken."""
    first, *lines = head.removesuffix(HEAD_END).decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise NotTaken(400, "this is no request to an HTTP proxy")
    method, target = line[1], line[2]
    headers = _headers(lines)
    if method == "CONNECT":
        tunnel = _TUNNEL.fullmatch(target)
        if tunnel is None:
            raise NotTaken(400, "CONNECT needs host:port, with a host's name")
        host, port = _place(tunnel[1], tunnel[2])
        _check_host_header(headers, host, port, None)
        return Request(host, port, is_tunnel=True)
    url = _URL.fullmatch(target)
    if url is None:
        raise NotTaken(400, "the target must be a plain URL http://host/path")
    host, port = _place(url[1], url[2] or str(HTTP_PORT))
    _check_host_header(headers, host, port, HTTP_PORT)
    length = _body_bytes(headers)
    path = url[3] or "/"
    path = path if path.startswith("/") else "/" + path
    named = host if port == HTTP_PORT else f"{host}:{port}"
    dropped = _NOT_FORWARDED | _named_in_connection(headers)
    kept = [f"{name}: {value}" for name, value in headers if name.lower() not in dropped]
    ours = [f"Content-Length: {length}"] if length or method not in ("GET", "HEAD") else []
    written = [f"{method} {path} HTTP/1.1", f"Host: {named}", *kept, *ours, "Connection: close"]
    sent = "\r\n".join(written).encode("latin-1") + HEAD_END
    return Request(host, port, is_tunnel=False, head=sent, body_bytes=length)


def _headers(lines: list[str]) -> list[tuple[str, str]]:
    if len(lines) > HEADERS_MAX:
        raise NotTaken(431, f"more than {HEADERS_MAX} headers")
    found = [_HEADER.fullmatch(line) for line in lines]
    if not all(found):
        raise NotTaken(400, "a header is malformed")
    return [(match[1], match[2].rstrip(" \t")) for match in found if match]


def _place(name: str, port: str) -> tuple[str, int]:
    host = name.lower().removesuffix(".")
    if not is_host(host):
        raise NotTaken(403, "only names of public hosts are taken, and no addresses")
    return host, int(port)


def _values(headers: list[tuple[str, str]], wanted: str) -> list[str]:
    return [value for name, value in headers if name.lower() == wanted]


def _check_host_header(
    headers: list[tuple[str, str]], host: str, port: int, usual: int | None
) -> None:
    values = _values(headers, "host")
    if len(values) > 1:
        raise NotTaken(400, "two Host headers")
    for value in values:
        name, _, said = value.lower().partition(":")
        is_port = said == str(port) or (not said and usual in (None, port))
        if name.removesuffix(".") != host or not is_port:
            raise NotTaken(400, "the Host header names another host than the target")


def _body_bytes(headers: list[tuple[str, str]]) -> int:
    if _values(headers, "transfer-encoding"):
        raise NotTaken(411, "a body needs a Content-Length, and no Transfer-Encoding")
    lengths = _values(headers, "content-length")
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(value) for value in lengths):
        raise NotTaken(400, "Content-Length must be one number")
    return int(lengths[0]) if lengths else 0


def _named_in_connection(headers: list[tuple[str, str]]) -> frozenset[str]:
    values = _values(headers, "connection")
    return frozenset(word.strip().lower() for value in values for word in value.split(","))
