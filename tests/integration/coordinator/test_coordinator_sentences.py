"""Tests `quorate coordinator up` with damaged or foreign files.

It ends with one sentence that names the remedy, and without a stack trace.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quorate_coordinator.api.middleware import refuse_untimely
from quorate_coordinator.base.config import FILES_KEPT
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.codec import canonical
from quorate_runtime.http.error_responses import failures
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE
from support.cli_prompt import typed
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party
from support.markets.worked_coordinator import (
    NOWHERE,
    WorkedCoordinator,
    a_deployment,
    work,
    worked_service,
)


@dataclass
class Operator:
    """A person at a terminal, with a coordinator's folder."""

    folder: Path

    def type(self, *words: str) -> tuple[int, str]:
        """Runs a command; returns its exit code and its output."""
        home = ("--home", str(self.folder / "home"))
        return typed("coordinator", *words, *home, *self.password)

    @property
    def password(self) -> tuple[str, str]:
        return "--password-file", str(self.folder / "password")

    def fails_to_start(self, *parts: str) -> None:
        """Asserts that the start fails with one line that holds all parts."""
        code, text = self.type("up", "--port", "0")
        told = [line for line in text.splitlines() if line.startswith("coordinator:")]
        assert code == EXIT_REFUSED and len(told) == 1 and "Traceback" not in text, text
        assert all(part in told[0] for part in parts), told


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """The operator's coordinator has worked before, so it starts without the chain."""
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "deployment.json").write_bytes(canonical.encode(a_deployment()))
    made = Operator(tmp_path)
    nodes = ("--chain-url", NOWHERE, "--beacon-url", NOWHERE)
    assert made.type("init", "--deployment", str(tmp_path / "deployment.json"), *nodes)[0] == 0
    asyncio.run(work(tmp_path / "home"))
    return made


def test_a_damaged_file_that_protects_money_stops_the_start(operator: Operator) -> None:
    """Without such a file money could be paid twice, or signatures could contradict each other.
    Other damaged files do not stop the start.
    """
    home = operator.folder / "home"
    for path, remedy in (
        (home / "transactions.sqlite", "backup"),
        (home / "journal" / "journal.db", "backup"),
        (home / "coordinator.json", "quorate coordinator init"),
    ):
        path.write_bytes(path.read_bytes()[:100] if path.exists() else b"")
        operator.fails_to_start(str(path), remedy)


def test_a_record_of_sent_transactions_with_foreign_tables_stops_the_start(
    operator: Operator,
) -> None:
    path = operator.folder / "home" / "transactions.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.executescript("PRAGMA journal_mode = WAL; CREATE TABLE runs (job_id BLOB)")
    before = path.read_bytes()
    operator.fails_to_start(str(path), "no such table: sends", "backup")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "version", "sentence"),
    [
        ("archive.sqlite", 99, ("newer Quorate",)),
        ("documents.sqlite", 9, ("newer Quorate",)),
        ("archive.sqlite", 2, ("older Quorate", "run `init` again")),
    ],
)
def test_a_file_of_another_version_stops_the_start_and_is_not_changed(
    operator: Operator, name: str, version: int, sentence: tuple[str, ...]
) -> None:
    path = operator.folder / "home" / name
    with closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE runs (job_id BLOB); PRAGMA user_version = {version}")
    before = path.read_bytes()
    operator.fails_to_start(str(path), *sentence)
    assert path.read_bytes() == before


def test_a_journal_older_than_the_archive_stops_the_start(operator: Operator) -> None:
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.until_archived(job_id)
    run = market.archive.run(job_id)
    archive = FileArchive(operator.folder / "home" / "archive.sqlite")
    assert run is not None
    archive.keep([run])
    archive.close()
    operator.fails_to_start(
        "older than what was signed after it",
        job_id.hex(),
        "put back the newest journal",
        "--journal-is-newest",
    )
    for command in ("status", "health"):
        _, told = operator.type(command)
        assert "it ended: the journal is older" in told and "put back the newest" in told, told


def test_files_that_may_be_begun_again_are_named(operator: Operator) -> None:
    code, text = operator.type("up", "--begin-anew", "journal")
    assert code == 2 and "--begin-anew journal: it is one of archive.sqlite" in text


def test_a_folder_that_another_process_uses_stops_the_start(operator: Operator) -> None:
    lock = operator.folder / "home" / "journal" / "journal.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        operator.fails_to_start(
            str(lock.parent), f"in use by another process (pid {os.getpid()})", "folder of its own"
        )


def test_a_journal_that_another_process_holds_stops_the_start(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate_runtime.journal.journal_files.BUSY_SECONDS", 0.1)
    path = operator.folder / "home" / "journal" / "journal.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        operator.fails_to_start(str(path), "database is locked", "start again")


def test_a_bad_url_is_reported_before_it_is_used(operator: Operator) -> None:
    for flag in ("--chain-url", "--beacon-url", "--public-url"):
        code, text = operator.type(
            "init", "--deployment", str(operator.folder / "deployment.json"), flag, "foo"
        )
        assert code == 2 and f"{flag} 'foo'" in text, text


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--p2p-listen", "7701"),
        ("--p2p-listen", "/ip4/0.0.0.0/udp/7701"),
        ("--p2p-listen", "/dns4/market.example/tcp/7701"),
        ("--p2p-announce", "/ip4/0.0.0.0/tcp/7701"),
        ("--p2p-announce", "/ip4/203.0.113.7/tcp/7701/p2p/12D3KooW"),
    ],
)
def test_a_bad_multiaddr_is_refused_by_its_flag_and_in_the_file(
    operator: Operator, flag: str, text: str
) -> None:
    deployment = str(operator.folder / "deployment.json")
    code, told = operator.type("init", "--deployment", deployment, flag, text)
    assert code == 2 and f"{flag} '{text}'" in told and "/tcp/7701" in told, told
    settings = operator.folder / "home" / "coordinator.json"
    good = settings.read_text()
    listen, announce = (text, "") if flag == "--p2p-listen" else ("", f'"{text}"')
    bad = good.replace('"p2pListen":""', f'"p2pListen":"{listen}"')
    bad = bad.replace('"p2pAnnounce":[]', f'"p2pAnnounce":[{announce}]')
    assert bad != good
    settings.write_text(bad)
    field = "p2pListen" if listen else "p2pAnnounce"
    operator.fails_to_start(str(settings), field, "correct it there")


def test_every_failure_is_one_object_with_code_and_detail_under_json(operator: Operator) -> None:
    nowhere = ("--url", NOWHERE)
    other = str(operator.folder / "other")
    for words, status, code, part in (
        (("up", "--port", "0", "--begin-anew", "x"), 2, "usage", "--begin-anew x"),
        (("up", "--home", other), 2, "unknown", "quorate coordinator init"),
        (("status", *nowhere), 4, "unavailable", NOWHERE),
        (("health", *nowhere), 4, "unavailable", NOWHERE),
        (("retire", "--yes"), 4, "unavailable", NOWHERE),
        (("withdraw", "--to", "0x1"), 2, "malformed", "40 hex digits"),
        (("report",), 4, "unavailable", "there are no tables yet"),
        (("init", "--chain-url", "x"), 2, "malformed", "--chain-url"),
    ):
        home = () if "--home" in words else ("--home", str(operator.folder / "home"))
        open_by = () if words[0] in ("status", "health", "report") else operator.password
        found, told = typed("coordinator", *words, *home, *open_by, "--json")
        facts = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
        assert (found, facts["error"], facts["exitCode"]) == (status, code, status), (words, told)
        assert part in facts["detail"] and f"coordinator: {facts['detail']}" in told, told


def test_an_unlocked_coordinator_asks_for_no_passphrase(operator: Operator) -> None:
    home = ("--home", str(operator.folder / "home"))
    code, told = typed("coordinator", "unlock", *home)
    assert code == EXIT_REFUSED and "no passphrase" in told, told
    code, told = operator.type("unlock", "--for", "5m", "--json")
    assert code == 0 and json.loads(told)["home"] == home[1], told
    try:
        # It goes as far as the chain, which is away.
        code, told = typed("coordinator", "retire", "--yes", *home)
        assert code == EXIT_UNAVAILABLE and NOWHERE in told, told
    finally:
        assert typed("coordinator", "lock", "--json", *home) == (0, '{"wasUnlocked": true}\n')


def test_a_bad_port_or_host_is_reported_without_a_stack_trace(operator: Operator) -> None:
    for port in ("70000", "-5"):
        code, text = operator.type("up", "--port", port)
        assert code == 2 and "--port" in text and "Traceback" not in text, text
    settings = operator.folder / "home" / "coordinator.json"
    good = settings.read_text()
    settings.write_text(good.replace('"port":7700', '"port":70000'))
    operator.fails_to_start(
        str(settings), "port: 70000 is not between 0 and 65535", "correct it there"
    )
    settings.write_text(good.replace('"host":"127.0.0.1"', '"host":"192.0.2.1"'))
    code, text = operator.type("up", "--port", "0")
    assert (
        code == EXIT_UNAVAILABLE
        and "starting: it reads the journal in" in text
        and "'192.0.2.1' is no address of this machine" in text
        and "init --host" in text
    ), text


async def test_only_health_is_answered_before_the_coordinator_is_ready() -> None:
    ready: list[bool] = []
    app = web.Application(middlewares=[failures, refuse_untimely(lambda: bool(ready))])

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    for path in ("/v1/health", "/v1/runs/0x12", "/v1/peers"):
        app.router.add_get(path, answer)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/health")).status == 200
        for path in ("/v1/runs/0x12", "/v1/peers"):
            early = await client.get(path)
            assert (
                early.status == 503
                and (await early.json())["code"] == "unavailable"
                and early.headers["Retry-After"] == "1"
            )
        ready.append(True)
        for path in ("/v1/runs/0x12", "/v1/peers"):
            assert (await client.get(path)).status == 200


async def test_a_start_with_many_pending_effects_waits_until_they_are_performed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash left more pending effects than the limit for new events. If the coordinator ended
    again, it would perform none of them.
    """
    monkeypatch.setattr("quorate_runtime.actor.actor.PENDING_MAX", -1)
    in_its_place = tmp_path / "market.sqlite"
    (in_its_place / "somebody's").mkdir(parents=True)
    service = await worked_service(tmp_path, frozenset(FILES_KEPT))
    running, deadline = asyncio.create_task(service.run()), time.monotonic() + 20

    async with aiohttp.ClientSession() as session:
        problems = WorkedCoordinator(service, session).problems
        while not (service.url and "outbox" in await problems()):
            assert not running.done() and time.monotonic() < deadline, running
            await asyncio.sleep(0.02)
        assert not service.ready.is_set()
        monkeypatch.undo()
        monkeypatch.setattr("quorate_coordinator.status.market_tables.REFRESH_SECONDS", 0.02)
        async with asyncio.timeout(10):
            await service.ready.wait()
        while "outbox" in (found := await problems()) or "tables" not in found:
            assert not running.done() and time.monotonic() < deadline, found
        shutil.rmtree(in_its_place)
        while "tables" in await problems():
            assert not running.done() and time.monotonic() < deadline
        assert in_its_place.is_file()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
