"""Targets of coverage-guided fuzzing: answers of a beacon, a coordinator's event stream, a registry
as a provider asks it, and bubblewrap's status.

As in `guided_targets`, each function returns, or raises what a stranger must not be able to cause.
"""

import hashlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult

from fuzz.guided_outer import Answer, Session, scratch_folder
from quorate.base.errors import UnavailableError, from_answer
from quorate.client.base.coordinator_api import ServerEvent, _tree, _view, server_events
from quorate_content.images.image_names import parse_pinned
from quorate_content.images.registry_http import RegistryHttp, TransferRate
from quorate_content.store.checked_http import CheckedHttp
from quorate_content.store.threads import StopSignal
from quorate_node.executors.docker.registry_image import fetch_archive
from quorate_node.executors.sandbox.supervised_program import PIDS_MAX, status_number
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Round, Seconds
from quorate_runtime.http.beacon_client import SCHEME, TRIES, HttpBeacon, fetch_info
from quorate_runtime.keys import bls
from support.fuzz_properties import pieces

T = TypeVar("T")
NUMBER, SECRET = Round(7), bls.keygen(b"fuzzed-beacon-of-32-bytes-length")
TRUE = bls.beacon_round(SECRET, NUMBER)
INFO = BeaconInfo(bls.public_key(SECRET), Seconds(3), 1_000)
STATUSES = (200, 404, 425, 503)
EVENT_BYTES = 2_048
IMAGE_BYTES = 1 << 20


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


class _Still:
    """A clock that does not move."""

    def now(self) -> float:
        return 2_000.0

    async def sleep(self, seconds: float) -> None:
        return


def fuzz_beacon(data: bytes) -> None:
    """A beacon relay's status, description and round, separated by an empty line."""
    status, (about, body) = (
        STATUSES[data[0] & 3 if data else 0],
        (*data[1:].split(b"\n\n", 1), b"")[:2],
    )
    try:
        info = finished(fetch_info("http://beacon.example", Session([Answer(200, {}, about)])))  # type: ignore[arg-type]
        assert 0 < info.period < 2**31 and 0 <= info.genesis_time < 2**63
    except Unavailable:
        pass  # the answer
    answers = Session([Answer(status, {}, body)] * TRIES)
    try:
        found = finished(HttpBeacon("http://beacon.example", INFO, answers, _Still()).round(NUMBER))  # type: ignore[arg-type]
    except Unavailable:
        return
    assert found == (TRUE if status == 200 else None), "nothing false is handed out"


def beacon_seeds() -> list[bytes]:
    """A valid beacon, one that does not answer yet, and times beyond every clock."""
    info = {
        "period": 3,
        "genesis_time": 1_000,
        "public_key": INFO.public_key.hex(),
        "schemeID": SCHEME,
        "hash": "00",
    }
    made = {"round": NUMBER, "signature": TRUE.signature.hex(), "randomness": TRUE.randomness.hex()}
    both = json.dumps(info).encode() + b"\n\n" + json.dumps(made).encode()
    beyond = json.dumps({**info, "genesis_time": 10**40, "period": 10**40}).encode()
    return [b"\0" + both, b"\1" + both, b"\0" + both[:-20] + b'"}', b"\0" + beyond]


def fuzz_events(data: bytes) -> None:
    """A coordinator's event stream in pieces of the size in the first byte.

    The same bytes are also the answer to a request.
    """
    step, body = data[0] + 1 if data else 1, data[1:]

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), step):
            yield body[at : at + step]

    async def read() -> list[ServerEvent]:
        return [event async for event in server_events(pieces(), EVENT_BYTES)]

    str(from_answer(500, _tree(body)))
    try:
        events = finished(read())
    except UnavailableError:
        return
    for event in events:
        assert max(len(event.id), len(event.data)) <= EVENT_BYTES
        try:
            _view(JobEvent, event.data.encode())
        except UnavailableError:
            continue


def event_seeds() -> list[bytes]:
    """Events as the coordinator sends them, whole and in small pieces, with a keep-alive."""
    told = (
        b'{"at":5,"commit":null,"jobId":"0x' + b"11" * 32 + b'","name":"acked","seq":1,"text":"x"}'
    )
    line = b"id: 1\nevent: acked\ndata: %s\n\n: alive\n\ndata: a\r\ndata: b\r\n\r\n" % told
    return [b"\xff" + line * 2, b"\x05" + line, b'\0{"code":"busy","detail":"x"}']


@dataclass(frozen=True, slots=True)
class _Offline(CheckedHttp):
    """Requests of which each gives the next answer; they need no network."""

    answers: Iterator[bytes]
    links: list[socket.socket]

    def _connected(self, place: SplitResult) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.links.append(theirs)
        theirs.sendall(next(self.answers, b""))
        theirs.shutdown(socket.SHUT_WR)
        return ours


def fuzz_image_registry(data: bytes) -> None:
    """An image's name, then a registry's answers, each behind two bytes of length.

    The image's digest is that of the first good answer's body that is no token.
    """
    name, *answers = [*pieces(data)] or [b""]
    parted = (answer.partition(b"\r\n\r\n") for answer in answers)
    digest = next(
        (
            _digest(body)
            for head, _, body in parted
            if head[9:12] == b"200" and b"token" not in body
        ),
        _digest(b""),
    )
    try:
        image = parse_pinned(f"{name.decode('latin-1')}@{digest}")
    except Refused:
        return
    stop, links = StopSignal(60.0), list[socket.socket]()
    registry = RegistryHttp(image.host, image.path, False, stop, TransferRate())
    registry._http = _Offline("image", "", False, stop, 30.0, iter(answers), links)
    with scratch_folder() as path:
        try:
            made = fetch_archive(image, registry, path / "images", IMAGE_BYTES, frozenset())
            assert made.is_file()
        except (Refused, Unavailable):
            pass  # the answer
        finally:
            for link in links:
                link.close()
        files = [file for file in path.rglob("*") if not file.is_dir()]
        assert sum(file.stat().st_size for file in files) <= 2 * IMAGE_BYTES
        assert all(
            file.parent.parent == path / "images" and not file.is_symlink() for file in files
        )


def _digest(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def image_registry_seeds() -> list[bytes]:
    """Valid registries: with one image, with an index, with a token and a redirect, with chunks."""
    config, layer = b"{}", b"layer" * 20
    blobs = [
        {"digest": _digest(body), "size": len(body), "mediaType": "application/x"}
        for body in (config, layer)
    ]
    manifest = json.dumps({"schemaVersion": 2, "config": blobs[0], "layers": blobs[1:]}).encode()
    entry = {"digest": _digest(manifest), "platform": {"os": "linux", "architecture": "amd64"}}
    index, token = json.dumps({"manifests": [entry]}).encode(), b'{"token":"abc"}'
    challenge = (
        b'WWW-Authenticate: Bearer realm="https://registry.example/token",service="x",scope="y"\r\n'
    )
    moved = _answer(b"307 Moved", b"", b"Location: https://other.example/x\r\n")
    wanted = [_answer(b"401 Who", b"", challenge), _answer(b"200 OK", token)]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(layer),
        layer,
    )
    rest = [_answer(b"200 OK", config), _answer(b"200 OK", layer)]
    runs = (
        [_answer(b"200 OK", manifest), *rest],
        [_answer(b"200 OK", index), _answer(b"200 OK", manifest), *rest],
        [moved, _answer(b"200 OK", manifest), rest[0], chunked],
        [*wanted, _answer(b"200 OK", manifest), *rest],
    )
    return [
        b"".join(
            len(piece).to_bytes(2, "big") + piece
            for piece in (b"registry.example/some/image", *answers)
        )
        for answers in runs
    ]


def _answer(status: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, more, len(body), body)


def fuzz_bwrap(data: bytes) -> None:
    """A status of bubblewrap's child is read as a possible number, or as nothing."""
    for name in ("child-pid", "exit-code"):
        found = status_number(data, name)
        assert found is None or (type(found) is int and 0 <= found <= PIDS_MAX)


def bwrap_seeds() -> list[bytes]:
    """A child that ran, and one that has not begun."""
    first = b'{ "child-pid": 6796, "mnt-namespace": 4026532179, "pid-namespace": 4026532180 }\n'
    return [first + b'{ "exit-code": 0 }\n', first, b'{ "child-pid": -1 }\n' + first]


ASKED: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "beacon": (fuzz_beacon, beacon_seeds),
    "events": (fuzz_events, event_seeds),
    "image_registry": (fuzz_image_registry, image_registry_seeds),
    "bwrap": (fuzz_bwrap, bwrap_seeds),
}
"""Targets with their seeds."""
