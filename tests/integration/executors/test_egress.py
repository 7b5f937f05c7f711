"""Attacks on the egress proxy from inside a container, whose network has a loopback only."""

import asyncio
import errno
import json
import os
import shutil
import socket
import time
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pip
import pytest

from quorate_node.executors.base.inside import HasInside
from quorate_node.rentals.egress import RentalEgress
from quorate_node.rentals.egress_proxy import PORT, VARIABLES, Bounds, EgressProxy
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import ending, make_executor, python_task
from support.rentals.fake_internet import PUBLIC, FakeInternet, proxying, web_server

BEGIN = """
import errno, json, os, socket, sys, time
def proxy():
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", 3128), 20)
        except ConnectionRefusedError:
            time.sleep(0.05)
def ask(text, data=b""):
    with proxy() as link:
        try:
            link.sendall(text.encode() + b"\\r\\n\\r\\n" + data)
            link.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := link.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer.decode("latin-1")
def status(*asked):
    return ask(*asked).partition(" ")[2][:3]
found = {}
"""
END = "\nprint(json.dumps(found), flush=True)\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
PRIVATE = {
    "loopback.test": "127.0.0.1",
    "lan.test": "192.168.1.1",
    "ten.test": "10.0.0.1",
    "shared.test": "100.64.0.1",
    "metadata.test": "169.254.169.254",
    "metadata6.test": "fd00:ec2::254",
    "loopback6.test": "::1",
    "mapped.test": "::ffff:10.0.0.1",
    "nat64.test": "64:ff9b::a00:1",
    "teredo.test": "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "sixtofour.test": "2002:a00:1::1",
    "linklocal.test": "fe80::1",
    "zero.test": "0.0.0.0",
}


@asynccontextmanager
async def running(
    image: Path,
    folder: Path,
    code: str,
    internet: FakeInternet,
    allowed: tuple[str, ...] = ("*",),
    bounds: Bounds = Bounds(),
    mounts: Mapping[str, Path] | None = None,
) -> AsyncIterator[tuple[EgressProxy, "asyncio.Task[dict[str, Any]]"]]:
    """Yields the proxy, and what the program in the container finds."""
    task = python_task(image, BEGIN + code + END, mounts=mounts, env=VARIABLES, pids=200)
    async with ending(make_executor("docker-runc", folder), "docker-runc", folder) as executor:
        await executor.start(task)
        listener = await executor.inside.listen(task.lease_id, PORT)  # type: ignore[attr-defined]

        async def ended() -> dict[str, Any]:
            status = (await executor.wait(task.lease_id)).status
            pieces = [piece.text async for piece in executor.logs(task.lease_id, follow=True)]
            text = b"".join(pieces).decode()
            assert status == 0, text
            said: dict[str, Any] = json.loads(text.splitlines()[-1])
            return said

        async with proxying(listener, internet, allowed, bounds) as proxy:
            waiting = asyncio.create_task(ended())
            yield proxy, waiting
            await waiting


def own_addresses() -> list[str]:
    """Of this machine: what a port scan of the host would aim at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return [str(probe.getsockname()[0]), "172.17.0.1"]


@pytest.mark.docker
@pytest.mark.rule("12.30")
async def test_nothing_of_the_owner_is_reached(
    image: Path, tmp_path: Path, socket_enabled: None
) -> None:
    hosts = [*own_addresses(), "192.168.1.1", "10.0.0.1", "169.254.169.254", "8.8.8.8"]
    code = f"""
hosts, names = {hosts!r}, {[*PRIVATE, "mixed.test", "rebind.test"]!r}
def errors(family, kind, address):
    with socket.socket(family, kind) as link:
        link.settimeout(2)
        try:
            link.connect(address)
            if kind == socket.SOCK_DGRAM:
                link.send(b"x")
            return "reached"
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
found["scan"] = sorted({{errors(socket.AF_INET, kind, (host, port)) for host in hosts
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for port in (22, 53, 80, 443, 2375, 7710)}})
found["scan6"] = sorted({{errors(socket.AF_INET6, socket.SOCK_STREAM, (host, 80))
    for host in ("fe80::1", "fd00::1", "2606:4700::1", "::ffff:192.168.1.1", "64:ff9b::a00:1")}})
found["own port"] = errors(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 7710))
found["names"] = {{name: [status(f"CONNECT {{name}}:443 HTTP/1.1"),
    status(f"GET http://{{name}}/ HTTP/1.1")] for name in names}}
found["rebound"] = status("CONNECT rebind.test:443 HTTP/1.1")
found["literals"] = sorted({{status(f"{{method}} {{before}}{{host}}{{after}} HTTP/1.1")
    for method, before, after in (("CONNECT", "", ":443"), ("GET", "http://", "/"))
    for host in ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]",
        "[::ffff:7f00:1]", "169.254.169.254", "8.8.8.8", "localhost", "u:p@public.test")}})
found["ports"] = sorted({{status(f"CONNECT public.test:{{port}} HTTP/1.1")
    for port in (0, 1, 25, 53, 3128, 6379, 7710, 8080, 65535, 65536, 99999)}})
redirect = ask("GET http://redirect.test/ HTTP/1.1")
found["redirect"] = redirect.partition("Location: ")[2].partition("\\r")[0]
found["followed"] = status("GET http://lan.test/ HTTP/1.1")
found["dot"] = status("GET http://public.test./ HTTP/1.1")
"""
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://lan.test/\r\nContent-Length: 0\r\n\r\n"
    async with web_server(lambda data: moved if b"redirect" in data else OK) as (port, _):
        names: dict[str, Any] = {name: [[address]] for name, address in PRIVATE.items()}
        names |= {"public.test": [[PUBLIC]], "redirect.test": [[PUBLIC]]}
        names |= {"mixed.test": [["10.0.0.1", PUBLIC, "::1"]]}
        # A public address first, and then the owner's: at the second request, and at the third.
        names |= {"rebind.test": [[PUBLIC], [PUBLIC], ["192.168.1.1"]]}
        internet = FakeInternet(names, {PUBLIC: port})
        async with running(image, tmp_path, code, internet) as (proxy, ended):
            found = await ended
    assert found["scan"] == ["ENETUNREACH"] and "reached" not in found["scan6"], found
    assert found["own port"] == "ECONNREFUSED", "the loopback is the container's own"
    assert {name: found["names"].pop(name) for name in PRIVATE} == {
        name: ["403", "403"] for name in PRIVATE
    }
    assert found["names"] == {"mixed.test": ["200", "200"], "rebind.test": ["200", "200"]}
    assert found["rebound"] == "403" and found["followed"] == "403" and found["dot"] == "200"
    assert found["redirect"] == "http://lan.test/", "a program gets the redirect itself"
    assert found["literals"] == ["400", "403"] and found["ports"] == ["403"]
    assert {address for address, _ in internet.reached} == {PUBLIC}
    assert proxy.traffic.refused > 40 and proxy.traffic.bytes_in > 0


@pytest.mark.docker
@pytest.mark.rule("12.31")
async def test_only_listed_hosts_hear_of_a_request(
    image: Path, tmp_path: Path, socket_enabled: None
) -> None:
    code = """
get = "GET http://good.test/{} HTTP/1.1\\r\\nHost: good.test"
hidden = b"GET http://bad.test/ HTTP/1.1\\r\\nHost: bad.test\\r\\n\\r\\n"
found["one"] = status(get.format(1))
found["below"] = status("GET http://a.b.wide.test/ HTTP/1.1")
found["others"] = [status(f"GET http://{name}/ HTTP/1.1")
    for name in ("bad.test", "xgood.test", "good.test.bad.test", "wide.test")]
found["pipelined"] = status(get.format(2), hidden)
found["beyond"] = status(get.format(3) + "\\r\\nContent-Length: 2", b"ab" + hidden)
found["short"] = status(get.format(4) + "\\r\\nContent-Length: 0", hidden)
found["two lengths"] = status(get.format(5) + "\\r\\nContent-Length: 2\\r\\nContent-Length: 99")
chunked = b"0\\r\\n\\r\\n" + hidden
found["chunked"] = status(get.format(6) + "\\r\\nTransfer-Encoding: chunked", chunked)
found["host"] = status("GET http://good.test/7 HTTP/1.1\\r\\nHost: bad.test")
found["long"] = status("GET http://good.test/8 HTTP/1.1\\r\\n" + "A: b\\r\\n" * 9999)
began = time.monotonic()
with proxy() as slow:
    slow.sendall(b"GET http://good.test/")
    slow_answer = b""
    while not slow_answer:
        slow.sendall(b"x")
        time.sleep(0.1)
        try:
            slow_answer = slow.recv(99, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
    found["slow answer"] = slow_answer.decode()[9:12]
    found["slow"] = time.monotonic() - began
"""
    names: dict[str, Any] = {
        name: [[PUBLIC]] for name in ("good.test", "a.b.wide.test", "bad.test")
    }
    async with web_server(lambda _: OK) as (port, received):
        internet = FakeInternet(names, {PUBLIC: port})
        allowed = ("*.wide.test", "good.test")
        bounds = Bounds(head_seconds=1.0)
        async with running(image, tmp_path, code, internet, allowed, bounds) as (_, ended):
            found = await ended
    assert [found[name] for name in ("one", "below", "pipelined", "beyond", "short")] == ["200"] * 5
    assert found["others"] == ["403"] * 4 and found["long"] == "431"
    assert [found[name] for name in ("two lengths", "chunked", "host")] == ["400", "411", "400"]
    assert found["slow answer"] == "408" and 0.9 < found["slow"] < 20.0
    assert not any(b"bad" in data for data in received), received
    assert all(data.count(b"HTTP/1.1") == 1 for data in received)
    assert not {"bad.test", "xgood.test", "wide.test"} & set(internet.asked), "no name leaks by DNS"


@pytest.mark.docker
@pytest.mark.rule("12.32")
async def test_ten_thousand_connections_wait_at_their_own_socket(
    image: Path, tmp_path: Path, socket_enabled: None
) -> None:
    """And the node goes on as before."""
    code = """
proxy().close()
began, children = time.monotonic(), []
for _ in range(2):
    pid = os.fork()
    if not pid:
        links = []
        for _ in range(5000):
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", 3128))
            links.append(link)
        time.sleep(6)
        os._exit(len(links) // 100)
    children.append(pid)
found["opened"] = sum(os.waitpid(pid, 0)[1] >> 8 for pid in children) * 100
found["after"] = status("GET http://good.test/ HTTP/1.1")
"""
    async with web_server(lambda _: OK) as (port, _):
        internet = FakeInternet({"good.test": [[PUBLIC]]}, {PUBLIC: port})
        bounds = Bounds(head_seconds=2.0, accepts_per_second=500)
        async with running(image, tmp_path, code, internet, bounds=bounds) as (proxy, ended):
            files, busy, before = 0, 0.0, len(os.listdir("/proc/self/fd"))
            while not ended.done():
                began = time.thread_time()  # the machine's other work makes the loop late too
                await asyncio.sleep(0.02)
                busy = max(busy, time.thread_time() - began)
                files = max(files, len(os.listdir("/proc/self/fd")))
            found = await ended
    print(f"{files - before} more files, the loop was busy for {busy * 1000:.0f} ms at most")
    assert found == {"opened": 10_000, "after": "200"}
    assert files - before <= Bounds().connections + 20 and busy < 0.5
    assert proxy.traffic.connections > Bounds().connections


@pytest.mark.docker
@pytest.mark.rule("12.30")
async def test_pip_installs_through_the_proxy(
    image: Path, tmp_path: Path, socket_enabled: None
) -> None:
    wheel = tmp_path / "hello-1.0-py3-none-any.whl"
    info = {"METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n", "RECORD": ""}
    info["WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("hello.py", "text = 'hello'\n")
        for name, text in info.items():
            file.writestr(f"hello-1.0.dist-info/{name}", text)
    tools = tmp_path / "tools"
    shutil.copytree(Path(pip.__file__).parent, tools / "pip")
    for path in (tools, *tools.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    link = f'<a href="http://files.packages.test/{wheel.name}">{wheel.name}</a>'.encode()

    def index(asked: bytes) -> bytes:
        is_file = b"/hello-1.0" in asked.split(b"\r\n")[0]
        kind, body = ("application/zip", wheel.read_bytes()) if is_file else ("text/html", link)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    code = """
import subprocess
os.environ |= {"PYTHONPATH": "/inputs/tools", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
run = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", "/scratch/lib"]
run += ["--index-url", "http://packages.test/simple/", "--trusted-host", "packages.test"]
run += ["--trusted-host", "files.packages.test", "--retries", "0"]
done = subprocess.run([*run, "hello"], capture_output=True, text=True)
sys.path.insert(0, "/scratch/lib")
found["pip"] = done.stdout + done.stderr
import hello
found["text"] = hello.text
found["none"] = subprocess.run([*run, "--index-url", "http://other.test/", "x"]).returncode
"""
    names: dict[str, Any] = {"packages.test": [[PUBLIC]], "files.packages.test": [[PUBLIC]]}
    async with web_server(index) as (port, _):
        internet = FakeInternet(names, {PUBLIC: port})
        mounts = {"/inputs/tools": tools}
        allowed = ("*.packages.test", "packages.test")
        async with running(image, tmp_path, code, internet, allowed, mounts=mounts) as (
            proxy,
            ended,
        ):
            found = await ended
    assert found["text"] == "hello" and found["none"] != 0, found["pip"]
    assert proxy.traffic.bytes_in > wheel.stat().st_size


@pytest.mark.docker
async def test_the_proxy_of_a_rental_serves_as_long_as_it_is_watched(
    image: Path, tmp_path: Path, socket_enabled: None, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
found["variables"] = os.environ["HTTPS_PROXY"]
found["said"] = ask("CONNECT 127.0.0.1:443 HTTP/1.1").splitlines()[-1]
"""
    task = python_task(image, BEGIN + code + END, env=VARIABLES)
    async with ending(make_executor("docker-runc", tmp_path), "docker-runc", tmp_path) as executor:
        assert isinstance(executor, HasInside)
        egress = RentalEgress(executor.inside.listen, SystemClock())
        await executor.start(task)
        with caplog.at_level("INFO"):
            serving = asyncio.create_task(egress.serve(task.lease_id, ("*",)))
            assert (await executor.wait(task.lease_id)).status == 0
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        pieces = [piece.text async for piece in executor.logs(task.lease_id, follow=True)]
    found = json.loads(b"".join(pieces))
    assert found["variables"] == f"http://127.0.0.1:{PORT}"
    assert found["said"] == "egress proxy: only names of public hosts are taken, and no addresses"
    assert egress.traffic[task.lease_id].refused == 1
    assert (
        f"rental 0x{task.lease_id}: egress 0 bytes in, 0 bytes out, 1 connections, 1 ref"
        in caplog.text
    )


async def test_a_silent_or_greedy_connection_ends(socket_enabled: None) -> None:
    """Silence is counted over both directions, and so is what a rental may send in all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        async with web_server(lambda data: data * 8) as (port, _):
            internet = FakeInternet({"good.test": [[PUBLIC]]}, {PUBLIC: port})
            bounds = Bounds(idle_seconds=0.5, volume_bytes=100_000)
            async with proxying(listener.dup(), internet, bounds=bounds) as proxy:
                for sent in (b"x", b"x" * 20_000):
                    reader, writer = await asyncio.open_connection(*address)
                    writer.write(b"CONNECT good.test:443 HTTP/1.1\r\n\r\n")
                    assert b"200" in await reader.readuntil(b"\r\n\r\n")
                    writer.write(sent)
                    async with asyncio.timeout(20):
                        try:
                            await reader.read()
                        except ConnectionResetError as error:
                            assert error.errno == errno.ECONNRESET
                    writer.close()
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"CONNECT good.test:443 HTTP/1.1\r\n\r\n")
                assert b"403 the rental has used its 100000 bytes" in await reader.read()
                writer.close()
                assert proxy.traffic.bytes_out >= 20_001
