"""`quorate data`: content on this machine, gateways, and a Kubo scripted from its answers."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate.cli.app import answer
from quorate_content.dag.cid import inline_cid, parse, raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_content.transfer.kubo import Kubo
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.http_server import on_loopback

MIB = 1 << 20


class Shell:
    """Runs commands on one store and reads their JSON."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    async def __call__(self, command: str, *words: str) -> tuple[int, dict[str, object]]:
        line = ["data", command, *words, "--store", str(self._folder), "--json"]
        code = await asyncio.to_thread(answer, line)
        return code, json.loads(self._capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "data", capsys)


async def test_content_is_added_listed_pinned_and_removed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(2 * MIB))
    cid = str(cid_of_path(tmp_path / "file"))
    assert await shell("add", str(tmp_path / "file")) == (
        0,
        {"cid": cid, "size": 2 * MIB, "kubo": None},
    )
    listed = {"objects": [{"cid": cid, "size": 2 * MIB, "isPinned": True}]}
    assert (await shell("ls"))[1] == listed
    assert (await shell("stat", cid))[1] == {"cid": cid, "size": 2 * MIB, "isStored": True}
    assert (await shell("gc"))[1] == {"freedBytes": 0}
    assert (await shell("pin", cid, "--off"))[1] == {"cid": cid, "isPinned": False}
    code, freed = await shell("gc")
    assert code == 0 and isinstance(freed["freedBytes"], int) and freed["freedBytes"] >= 2 * MIB
    assert (await shell("ls"))[1] == {"objects": []}


async def test_content_is_fetched_from_a_gateway_by_either_version(
    shell: Shell, tmp_path: Path
) -> None:
    origin, app = ContentStore(tmp_path / "origin", 64 * MIB), web.Application()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(os.urandom(2 * MIB))
    stat = await origin.put(tmp_path / "tree", "a")
    add_gateway_routes(app, origin)
    async with on_loopback(app) as url:
        version_0 = str(type(stat.cid)(0, stat.cid.codec, stat.cid.digest))
        code, size = await shell("stat", version_0, "--gateway", url)
        assert code == 0 and isinstance(size["size"], int) and size["size"] >= 2 * MIB
        code, got = await shell("get", version_0, "--gateway", url, "-o", str(tmp_path / "out"))
    assert (code, got["cid"], got["size"]) == (0, str(stat.cid), 2 * MIB)
    assert sum(dict(got["bytesBySource"]).values()) == 2 * MIB  # type: ignore[call-overload]
    assert cid_of_path(tmp_path / "out") == stat.cid
    (tmp_path / "out" / "big").write_bytes(b"a copy may be changed")
    await origin.close()


async def test_errors_are_one_sentence(shell: Shell, tmp_path: Path) -> None:
    assert (await shell("stat", "bafynonsense"))[0] == 2
    assert (await shell("add", str(tmp_path / "absent")))[0] == 2
    assert (await shell("stat", str(raw_cid(b"x"))))[0] == 2


class ScriptedKubo:
    """Answers as a Kubo 0.44 did: see docs/decisions/0001. It keeps what it imported."""

    def __init__(self) -> None:
        self.pins: dict[str, str] = {}
        self.asked: list[str] = []
        self.pin_error, self.has_peers = "", True

    async def handle(self, request: web.Request) -> web.Response:
        command, query = request.match_info["command"], request.query
        self.asked.append(command)
        if command == "version":
            return web.json_response({"Version": "0.44.0-dev"})
        if command == "config":
            return web.json_response({"Key": query["arg"], "Value": "/ip4/0.0.0.0/tcp/8080"})
        if command == "pin/ls":
            if query["arg"] not in self.pins:
                message = f"path '{query['arg']}' is not pinned"
                return web.json_response({"Message": message, "Code": 0}, status=500)
            found = {"Type": "recursive", "Name": self.pins[query["arg"]]}
            return web.json_response({"Keys": {query["arg"]: found}})
        if command == "pin/add":
            self.pins[query["arg"]] = query.get("name", "")
            return web.json_response({"Pins": [query["arg"]]})
        if command == "dag/import":
            return await self._import(request)
        if command == "provide/once" and not self.has_peers:
            message = "cannot provide, no connected peers"
            return web.json_response({"Message": message, "Code": 0}, status=500)
        if command == "provide/once":
            return web.json_response({"Queued": {"/": query["arg"]}})
        return web.Response(status=404, text="404 page not found")

    async def _import(self, request: web.Request) -> web.Response:
        assert request.query["pin-roots"] == "true" and "timeout" in request.query
        part = await (await request.multipart()).next()
        assert isinstance(part, aiohttp.BodyPartReader) and part.name == "file"
        car = bytes(await part.read())
        start = car.index(b"\x58\x25\x00") + 3
        root = str(parse("b" + _base32(car[start : start + 36])))
        self.pins[root] = ""  # the import erases the name
        line = {"Root": {"Cid": {"/": root}, "PinErrorMsg": self.pin_error}}
        return web.json_response(line)


def _base32(raw: bytes) -> str:
    from base64 import b32encode

    return b32encode(raw).decode().lower().rstrip("=")


@asynccontextmanager
async def scripted_kubo() -> AsyncIterator[tuple[str, ScriptedKubo]]:
    kubo, app = ScriptedKubo(), web.Application(client_max_size=64 * MIB)
    app.router.add_post("/api/v0/{command:.+}", kubo.handle)
    async with on_loopback(app) as url:
        yield url, kubo


async def test_a_kubo_imports_pins_and_announces_what_is_added(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(3 * MIB))
    cid = str(cid_of_path(tmp_path / "file"))
    async with scripted_kubo() as (url, kubo):
        words = ("add", str(tmp_path / "file"), "--kubo", url, "--name", "mine")
        code, said = await shell(*words)
        assert (code, said["kubo"]) == (
            0,
            {"version": "0.44.0-dev", "isAnnounced": True, "problem": ""},
        )
        assert kubo.pins == {cid: "mine"}
        kubo.pins[cid], kubo.has_peers = "the owner's own name", False
        code, said = await shell(*words)
        assert code == 0 and "no connected peers" in str(said["kubo"])
        assert kubo.pins == {cid: "the owner's own name"}


async def test_an_import_with_a_pin_error_is_a_failure(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    async with scripted_kubo() as (url, kubo):
        kubo.pin_error = "context deadline exceeded"
        code, said = await shell("add", str(tmp_path / "file"), "--kubo", url)
    assert code == 3 and "deadline" in json.dumps(said)


async def test_what_a_kubo_answers_becomes_typed_errors() -> None:
    async with scripted_kubo() as (url, _), aiohttp.ClientSession() as session:
        kubo = Kubo(session, url)
        assert (await kubo.gateway_url()).startswith("http://127.0.0.1:8080")
        assert await kubo.pin_name(inline_cid(b"")) is None
        with pytest.raises(Refused) as refused:
            await Kubo(session, url + "/wrong").version()
        assert refused.value.code is Code.UNKNOWN
        with pytest.raises(Unavailable, match="does not answer"):
            await Kubo(session, "http://127.0.0.1:1").version()
