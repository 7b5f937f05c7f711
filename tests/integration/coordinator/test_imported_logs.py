"""A coordinator imports another's public log: whole, forged, shortened, and after a restart."""

import asyncio
import json
from pathlib import Path

import pytest

from quorate.cli.main import run_main
from quorate_coordinator.market.imported_logs import ImportedLogs
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.views import ImportedView
from quorate_protocol.rules.reputation import fold
from quorate_protocol.units import ZERO_ADDRESS, Address
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.log_source import OTHER, LogSource, serving
from support.markets.logged_market import serving_log, sixty_jobs
from support.markets.scripted_market import COORDINATOR, DOMAIN
from support.virtual_clock import VirtualClock

BONDED = {OTHER.address: OTHER.address}


def imports_of(folder: Path, url: str, bonded: dict[Address, Address] = BONDED) -> ImportedLogs:
    async def key_of(account: Address) -> Address:
        return bonded.get(account, ZERO_ADDRESS)

    return ImportedLogs((url,), folder, DOMAIN, COORDINATOR.address, key_of, VirtualClock(0.0), 1.0)


def seen(imports: ImportedLogs) -> ImportedView:
    (view,) = imports.view()
    return view


@pytest.mark.rule("7.27", "7.32")
async def test_an_imported_log_grows_and_outlives_a_restart(tmp_path: Path) -> None:
    source, trusts = LogSource(), dict[Address, fold.Trusts]()
    source.sign(40)
    for line in source.lines:
        trusts.update(fold.after_summary(trusts, line.message))
    async with serving(source) as url:
        imports = imports_of(tmp_path, url)
        source.lines = source.lines[:25]
        await imports.look(url)
        assert seen(imports).head == source.head() and not seen(imports).problem
        source.sign(40)
        await imports.look(url)
    files = imports_of(tmp_path, url)  # its source is gone
    (lines,) = tmp_path.glob("*.jsonl")
    whole = lines.read_bytes()
    lines.write_bytes(whole + b"half a line, when the process was kil")
    await files.load()
    await files.look(url)
    for view in (seen(imports), seen(files)):
        assert view.head == source.head() and not view.problem
        assert {one.provider: one.reputation for one in view.providers} == {
            owner: fold.view_of(known) for owner, known in trusts.items()
        }
    assert lines.read_bytes() == whole, "what a crash left is cut off"
    lines.write_bytes(whole[:-9])
    await files.load()
    assert seen(files).head is None and not list(tmp_path.glob("*.jsonl")), "it is read again"


@pytest.mark.rule("7.24", "7.27")
@pytest.mark.parametrize("forgery", ["a changed line", "all signed again", "lines dropped", "key"])
async def test_a_forged_log_is_refused_and_changes_nothing(tmp_path: Path, forgery: str) -> None:
    source = LogSource()
    source.sign(20)
    async with serving(source) as url:
        imports = imports_of(tmp_path, url)
        await imports.look(url)
        before = seen(imports)
        source.sign(40, cut=7 if forgery == "all signed again" else None)
        if forgery == "a changed line":
            message = source.lines[30].message
            changed = replace(message, executions=message.executions[1:])
            source.lines[30] = Envelope(changed, source.lines[30].sig)
        elif forgery == "lines dropped":
            source.lines = source.lines[:12]
        elif forgery == "key":
            source.key = KeySigner(b"\x67" * 32)
            source.sign(40)
        await imports.look(url)
        told = {
            "a changed line": "line 30 was rewritten",
            "all signed again": "line 20 does not follow",
            "lines dropped": "the lines from 12 on were dropped",
            "key": "now it is another's",
        }
        assert told[forgery] in seen(imports).problem
        assert replace(seen(imports), problem="") == before
        source.key = OTHER
        source.sign(40)
        await imports.look(url)
        assert seen(imports).head == source.head() and not seen(imports).problem


@pytest.mark.rule("7.27")
async def test_a_log_of_no_bonded_coordinator_is_refused(tmp_path: Path) -> None:
    source = LogSource()
    source.sign(5)
    async with serving(source) as url:
        for bonded in ({}, {OTHER.address: COORDINATOR.address}):
            imports = imports_of(tmp_path, url, bonded)
            await imports.look(url)
            assert "not the statement key of a bonded" in seen(imports).problem
            assert seen(imports).head is None and not list(tmp_path.iterdir())


@pytest.mark.rule("7.32")
async def test_the_command_shows_imported_numbers_beside_the_own_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORATE_HOME", str(tmp_path / "nobody"))
    market, source = sixty_jobs(), LogSource()
    source.sign(30)
    provider = source.lines[0].message.executions[0].provider
    async with serving(source) as url:
        imports = imports_of(tmp_path / "imported", url)
        await imports.look(url)
        source.sign(30, cut=2)
        await imports.look(url)
    async with serving_log(market, market.lines, imports) as url:
        words = ["reputation", f"0x{provider.hex()}", "--url", url]
        assert await asyncio.to_thread(run_main, words) == 0
        out, _ = capsys.readouterr()
        rows = [line.split() for line in out.splitlines()[1:]]
        assert len(rows) == 2 and rows[1][1:4:2] == [
            f"0x{account.address.hex()[:12]}" for account in (OTHER, COORDINATOR)
        ]
        assert await asyncio.to_thread(run_main, [*words, "--json"]) == 0
        (log,) = json.loads(capsys.readouterr().out)["logs"]
    (shown,) = log["imported"]
    assert shown["providers"][0]["provider"] == f"0x{provider.hex()}" and shown["head"]
