"""What the egress proxy reads as a request, and what it writes to the target."""

import asyncio
import logging
import socket

import pytest

from quorate_node.rentals.egress_proxy import Bounds
from quorate_node.rentals.egress_requests import NotTaken, parse
from support.rentals.fake_internet import PUBLIC, FakeInternet, proxying, web_server

GET = b"GET http://a.org/x?y=1 HTTP/1.1\r\n"


def written(head: bytes) -> bytes:
    return parse(head + b"\r\n").head


@pytest.mark.rule("12.31")
def test_a_plain_request_goes_on_with_one_host_and_one_length() -> None:
    head = b"Host: A.org:80\r\nAccept: */*\r\nProxy-Authorization: x\r\nConnection: close, x-a\r\n"
    found = parse(GET + head + b"X-A: 1\r\nContent-Length: 3\r\n\r\n")
    assert (found.host, found.port, found.is_tunnel, found.body_bytes) == ("a.org", 80, False, 3)
    assert found.head == (
        b"GET /x?y=1 HTTP/1.1\r\nHost: a.org\r\nAccept: */*\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert written(b"POST http://a.org?q HTTP/1.0\r\n").startswith(b"POST /?q HTTP/1.1\r\nHost: a")
    assert b"Content-Length: 0" in written(b"POST http://a.org HTTP/1.0\r\n")
    other = parse(b"GET HTTP://A.org.:443/ HTTP/1.1\r\nHost: a.org:443\r\n\r\n")
    assert (other.host, other.port) == ("a.org", 443) and b"Host: a.org:443\r\n" in other.head


@pytest.mark.parametrize("host", [b"", b"Host: a.org\r\n", b"Host: a.org:443\r\n"])
def test_a_tunnel_has_a_name_and_a_port(host: bytes) -> None:
    found = parse(b"CONNECT a.ORG.:443 HTTP/1.1\r\n" + host + b"\r\n")
    assert (found.host, found.port, found.is_tunnel, found.head) == ("a.org", 443, True, b"")


ATTACKS = [
    # which target
    (b"GET http://user@a.org/ HTTP/1.1\r\n", 400),
    (b"GET http://a.org@10.0.0.1/ HTTP/1.1\r\n", 400),
    (b"GET http://10.0.0.1\\@a.org/ HTTP/1.1\r\n", 400),
    (b"GET http://10.0.0.1\\.a.org/ HTTP/1.1\r\n", 403),
    (b"GET http://10.0.0.1#.a.org/ HTTP/1.1\r\n", 400),
    (b"GET http://a.org:80:22/ HTTP/1.1\r\n", 400),
    (b"GET https://a.org/ HTTP/1.1\r\n", 400),
    (b"GET //a.org/ HTTP/1.1\r\n", 400),
    (b"GET /x HTTP/1.1\r\nHost: a.org\r\n", 400),
    (b"GET http://a.org/ HTTP/2.0\r\n", 400),
    (b"GET  http://a.org/ HTTP/1.1\r\n", 400),
    (b"get http://a.org/ HTTP/1.1\r\n", 400),
    (b"GET http://a%2eorg/ HTTP/1.1\r\n", 403),
    (b"GET http://a.org\xe3\x80\x82x/ HTTP/1.1\r\n", 400),
    (b"CONNECT a.org HTTP/1.1\r\n", 400),
    (b"CONNECT user@a.org:443 HTTP/1.1\r\n", 400),
    (b"CONNECT a.org:443/x HTTP/1.1\r\n", 400),
    (b"CONNECT [::1]:443 HTTP/1.1\r\n", 400),
    (b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n", 403),
    (b"CONNECT 2130706433:443 HTTP/1.1\r\n", 403),
    (b"CONNECT 0x7f000001:443 HTTP/1.1\r\n", 403),
    (b"CONNECT 0177.0.0.1:443 HTTP/1.1\r\n", 403),
    (b"CONNECT localhost:443 HTTP/1.1\r\n", 403),
    (b"CONNECT a..org:443 HTTP/1.1\r\n", 403),
    # which host
    (GET + b"Host: b.org\r\n", 400),
    (GET + b"Host: a.org\r\nHost: a.org\r\n", 400),
    (GET + b"Host: a.org:443\r\n", 400),
    (GET + b"Host: a.org\t\r\nhost : b.org\r\n", 400),
    (b"CONNECT a.org:443 HTTP/1.1\r\nHost: b.org:443\r\n", 400),
    # where it ends
    (GET + b"Content-Length: 1\r\nContent-Length: 1\r\n", 400),
    (GET + b"Content-Length: 1, 1\r\n", 400),
    (GET + b"Content-Length: +1\r\n", 400),
    (GET + b"Content-Length: -1\r\n", 400),
    (GET + b"Content-Length: 0x10\r\n", 400),
    (GET + b"Transfer-Encoding: chunked\r\n", 411),
    (GET + b"Transfer-Encoding: identity\r\nContent-Length: 4\r\n", 411),
    (GET + b"Transfer-Encoding : chunked\r\n", 400),
    (GET + b"A: b\r\n Host: b.org\r\n", 400),
    (GET + b"A: b\nHost: b.org\r\n", 400),
    (GET + b"A: b\rHost: b.org\r\n", 400),
    (GET + b"A: \x00\r\n", 400),
    (GET + b": a\r\n", 400),
    (GET + b"A: b\r\n" * 101, 431),
]


@pytest.mark.rule("12.31")
@pytest.mark.parametrize(("head", "status"), ATTACKS)
def test_what_two_programs_could_read_differently_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(NotTaken) as refused:
        parse(head + b"\r\n")
    assert refused.value.status == status
    answer = refused.value.answer()
    assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"\r\n\r\n") == 1
    assert b"Connection: close" in answer


def test_a_length_that_the_connection_header_names_stays() -> None:
    found = parse(GET + b"Connection: content-length, host\r\nContent-Length: 5\r\n\r\n")
    assert b"Content-Length: 5\r\n" in found.head and b"Host: a.org\r\n" in found.head


async def test_the_log_names_each_host_of_a_rental_once_and_at_most_256(
    socket_enabled: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [f"h{number}.test" for number in range(260)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with web_server(lambda _: b"") as (port, _):
            internet = FakeInternet({name: [(PUBLIC,)] for name in names}, {PUBLIC: port})
            async with proxying(listener, internet, bounds=Bounds(accepts_per_second=10_000)):
                for name in (names[0], *names, "unknown.test"):
                    reader, writer = await asyncio.open_connection(*listener.getsockname())
                    writer.write(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())
                    assert await reader.readline()
                    writer.close()
    told = [text for text in caplog.messages if "egress to" in text]
    assert told[0] == f"rental 0x: egress to h0.test:443 ({PUBLIC})" and "h1.test" in told[1]
    assert len(told) == 257 and "not logged" in told[256]
