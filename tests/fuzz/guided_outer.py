"""Targets of coverage-guided fuzzing: outputs of engines and providers, registries, HTTP heads.

As in `guided_targets`, each function returns, or raises what a stranger must not be able to cause.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from yarl import URL

from quorate.base.errors import QuorateError
from quorate.images.tag_resolution import KINDS, resolve
from quorate_content.images.image_names import TaggedImage
from quorate_content.transfer.sealed import _seal, check_sealed, open_sealed, output_key
from quorate_node.executors.base.outputs import OutputCaps
from quorate_node.executors.docker.lease_dirs import collect_tar
from quorate_protocol.messages.bearer import Bearer, make_token, read_token
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_runtime.http.client_networks import FORWARDED, X_FORWARDED_FOR, Proxies, network_of
from quorate_runtime.keys.crypto import KeySigner, recover
from quorate_runtime.peers.channel import Kind, _error_of
from support.executors.image_archives import entry, tar

SCRATCH = Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
CAPS = OutputCaps(total_bytes=1 << 20, inodes=100)
SALT = bytes(32)
KEY, COORDINATOR, AT = KeySigner(b"\x42" * 32), Address(b"\x11" * 20), UnixSeconds(1_000)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def fuzz_outputs(data: bytes) -> None:
    """The tar stream in which an engine returns a job's outputs.

    Either files and folders are written inside the destination and within the caps, or nothing.
    """
    with scratch_folder() as folder:
        try:
            collect_tar(
                iter([data[at : at + 4096] for at in range(0, len(data), 4096)]),
                folder / "out",
                CAPS,
            )
        except Refused:
            assert not (folder / "out").exists(), "complete or not at all"
        found = list((folder / "out").rglob("*"))
        assert len(found) <= CAPS.inodes and not any(path.is_symlink() for path in found)
        assert sum(path.stat().st_size for path in found if path.is_file()) <= CAPS.total_bytes
        assert {path.name for path in folder.iterdir()} <= {"out"}


def fuzz_sealed(data: bytes) -> None:
    """A provider's ciphertext: a mode, 32 bytes of digest, then the sealed bytes.

    With an odd mode the bytes are sealed with their salt first.
    """
    digest, content = Hash32(data[1:33].ljust(32, b"\0")), data[33:]
    if data[:1] and data[0] & 1:
        content = b"".join(_seal(iter([content]), output_key(SALT))) if content else b""
    with scratch_folder() as folder:
        (folder / "sealed").write_bytes(content)
        has_opened = True
        try:
            check_sealed(folder / "sealed", SALT, digest, 1 << 20)
        except Refused:
            has_opened = False
        try:
            open_sealed(folder / "sealed", SALT, digest, folder / "open", 1 << 20)
        except Refused:
            assert not has_opened, "the coordinator and the client say the same of it"
        assert {path.name for path in folder.iterdir()} == {
            "sealed",
            *(["open"] if has_opened else []),
        }


class Answer:
    """The parts of an HTTP answer that the client reads."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self._body, self.content = status, headers, body, self

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), size):
            yield self._body[at : at + size]

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(self, *_: object) -> None:
        return


class Session:
    """Gives answers in order; refuses an invalid URL as aiohttp does."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = iter(answers)

    def get(self, url: str, **_: object) -> Answer:
        try:
            URL(url)
        except ValueError as error:
            raise aiohttp.InvalidURL(url) from error
        return next(self._answers)


def fuzz_registry(data: bytes) -> None:
    """A registry's challenge, token and manifest, separated by empty lines, for resolving a tag."""
    challenge, token, manifest = (*data.split(b"\n\n", 2), b"", b"")[:3]
    head = challenge.decode("latin-1").replace("\r", "").replace("\n", "")
    kind = {"Content-Type": KINDS[0]}
    answers = [
        Answer(401, {"WWW-Authenticate": head}, b""),
        Answer(200, {}, token),
        Answer(200, kind, manifest),
    ]
    image = TaggedImage("registry.example/x:1", "registry.example", "x", "1")
    try:
        asyncio.run(resolve(Session(answers), image))  # type: ignore[arg-type]
    except QuorateError:
        return


def fuzz_head(data: bytes) -> None:
    """Values in the head of a request, and reasons of failed peer requests.

    These are tokens, addresses from a proxy, and refusals.
    """
    text = data.decode("latin-1")
    try:
        assert read_token(text, 1, COORDINATOR, recover, AT).key == KEY.address or len(text) > 200
    except Refused:
        pass  # the answer
    for header in (X_FORWARDED_FOR, FORWARDED):
        origin = Proxies.of(("10.0.0.0/8",), header).origin("10.0.0.1", text.split("\n"))
        assert network_of(origin) != "?", "an address, whatever was written there"
    for kind in (Kind.REFUSED, Kind.UNAVAILABLE):
        try:
            _error_of(kind, data)
        except Refused:
            continue


def head_seeds() -> list[bytes]:
    """Valid heads."""
    token = make_token(
        Bearer(KEY.address, KEY.address, UnixSeconds(AT + 60)), 1, COORDINATOR, KEY.sign
    )
    refused, failed = b'{"code":"busy","detail":"x"}', b'{"retryAfterMs":5,"what":"x"}'
    return [
        token.encode(),
        b"1.2.3.4, 10.0.0.2",
        b'for="[2001:db8::1]:80";by=10.0.0.3, for=1.2.3.4',
        refused,
        failed,
    ]


def registry_seeds() -> list[bytes]:
    """Valid registries, with one image and with an index."""
    digest = (
        b'"digest":"sha256:'
        + b"1" * 64
        + b'","mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":5'
    )
    image = b'{"config":{' + digest + b'},"layers":[{' + digest + b"}]}"
    index = b'{"manifests":[{' + digest + b',"platform":{"architecture":"amd64","os":"linux"}}]}'
    heads = (
        b"Bearer "
        b'realm="https://registry.example/token",service="registry.example",scope="repository:x:pull"'
    )
    return [b"\n\n".join((heads, b'{"token":"abc"}', body)) for body in (image, index)]


def output_seeds() -> list[bytes]:
    """A valid output folder with everything that is allowed, and one with links, which are not."""
    good = [
        entry("out", kind=b"5", mode=0o755),
        entry("out/a", b"abc"),
        entry("out/b", kind=b"5", mode=0o755),
        entry("out/b/c", b"d"),
    ]
    return [
        tar(good),
        tar([*good, entry("out/h", kind=b"1", link="out/a")]),
        tar([*good, entry("out/s", kind=b"2", link="/etc/passwd")]),
    ]


OUTER: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "outputs": (fuzz_outputs, output_seeds),
    "registry": (fuzz_registry, registry_seeds),
    "head": (fuzz_head, head_seeds),
}
"""Targets with their seeds; `sealed` has its seeds in `guided_seeds`, where CARs are made."""
