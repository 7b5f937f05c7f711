"""The second place of a coordinator's files: kill -9, and a coordinator restored elsewhere."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import ARCHIVE, DOCUMENTS, Config
from quorate_coordinator.base.storage_sizes import Keeping
from quorate_coordinator.service import Service
from quorate_coordinator.storage import second_place
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.restoring import check_place
from quorate_coordinator.storage.second_place import Owner, SecondPlace, make_place, read_marker
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Amount, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.journal_port import Record
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_copy import check_copy
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import Keystore
from support.cli_prompt import typed
from support.markets.archiving_market import ArchivingMarket
from support.markets.coordinator_stage import Stage, running, until
from support.markets.scripted_market import Party
from support.markets.wired_providers import Floor, Place, WiredProvider
from support.messages import a_spec
from support.virtual_clock import VirtualClock

PROVIDER = KeySigner(dev_account(7))
LAG_SECONDS_MAX = 30
KEEPING = Keeping(1 << 30, 90 * 86_400)
READY_SECONDS = 120.0
OWNER = Owner(Address(b"\x07" * 20), 1, Address(b"\x09" * 20))


@asynccontextmanager
async def coordinator(home: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs `quorate coordinator up` in its own process; yields it with its URL, and kills it."""
    ready = home.parent / "ready.json"
    password = str(home.parent / "password")
    words = ("up", "--home", str(home), "--password-file", password, "--ready-file", str(ready))
    program = [str(Path(sys.executable).with_name("quorate")), "coordinator", *words]
    with subprocess.Popen(program) as process:
        try:
            limit = time.monotonic() + READY_SECONDS
            while not ready.exists():
                assert process.poll() is None and time.monotonic() < limit, "it does not start"
                await asyncio.sleep(0.05)
            yield process, json.loads(ready.read_text())["url"]
        finally:
            process.kill()


@pytest.mark.rule("I6")
async def test_a_coordinator_killed_and_restored_elsewhere_has_all_it_acknowledged_before_the_lag(
    stage: Stage, tmp_path: Path
) -> None:
    home = stage.make_home(tmp_path / "password")
    place, new = tmp_path / "second", tmp_path / "new"
    told = ("--home", str(home))
    code, text = typed("coordinator", "backup", str(place), *told)
    assert code == 0 and "empty yet" in text, text
    async with coordinator(home) as (process, url):
        await asyncio.gather(
            stage.fund(stage.client, Amount(100 * USD)), stage.register(PROVIDER, 0)
        )
        floor = Floor(Place.of(stage, url), tmp_path / "outputs")
        provider = WiredProvider(PROVIDER, floor, stage.session, slots=1)
        async with provider.serving():
            job_ids = [await ordered(stage, url, number) for number in range(3)]
            acknowledged = int(time.time())
            async with asyncio.timeout(LAG_SECONDS_MAX):
                while read_marker(place).copied_at <= acknowledged:
                    await asyncio.sleep(0.1)
            shown = (await stage.get(url, "operator"))[1]["backup"]
            async with stage.session.get(f"{url}/metrics") as response:
                assert "quorate_backup_lag_seconds" in await response.text()
            assert shown["lagSeconds"] <= LAG_SECONDS_MAX and not shown["problem"], shown
            asked = ("coordinator", "status", "--url", url, *told)
            code, text = await asyncio.to_thread(typed, *asked)
            assert code == 0 and f"{place}: " in text and " s behind, " in text, text
            os.kill(process.pid, signal.SIGKILL)
    code, text = typed("coordinator", "restore", str(place), "--check", "--home", str(new))
    assert code == 0 and "has all that was durable at" in text and not new.exists(), text
    code, text = typed("coordinator", "restore", f"file://{place}", "--home", str(new))
    assert code == 0 and f"up --home {new}" in text, text
    keys = coordinator_keys.load(Keystore.at(new / "keys", "secret", DEVNET))
    config = Config(stage.deployment, stage.chain_url, stage.beacon_url, port=0, home=new)
    async with running(Service(config, keys)) as service:
        for job_id in job_ids:
            status, _ = await stage.get(service.url, f"runs/{job_id}", stage.client)
            assert status == 200, "acknowledged, and lost"


async def ordered(stage: Stage, url: str, number: int) -> str:
    """Orders a job as soon as an offer fits; returns its id, which the coordinator acknowledged."""

    async def ask() -> dict[str, str]:
        submission = stage.submission(stage.client, a_spec(f"job-{number}"), number + 1)
        await stage.prepay(url, submission, stage.client)
        body = canonical.encode(submission)
        async with stage.session.post(f"{url}/v1/orders", data=body) as response:
            return dict(await response.json())

    return str((await until(ask, lambda answer: "ack" in answer))["jobId"])


async def filled(home: Path, count: int) -> None:
    """Writes a journal with some events."""
    journal = Journal.open(home / "journal")
    for _ in range(count):
        await journal.append(Record(1, UnixSeconds(5), ZERO_HASH, b"event"))
    await journal.close()


async def test_a_full_second_place_is_said_once_a_minute_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home, place, clock = tmp_path / "home", tmp_path / "second", VirtualClock(1_000_000.0)
    make_place(place, home, OWNER)
    await filled(home, 3)
    copier = SecondPlace(home, place, OWNER, clock, lambda: 7)
    with monkeypatch.context() as full:
        full.setattr(second_place, "BYTES_LEAST", 1 << 60)
        for _ in range(125):
            await copier.copy(place)
            clock.forward(1.0)
    said = [line for line in caplog.messages if "MiB free" in line]
    assert len(said) == 3 and "free some space there" in said[0]
    view = copier.view()
    assert view is not None and view.problem and view.lag_seconds is None
    assert view.events_behind == 7
    await copier.copy(place)
    view = copier.view()
    assert view is not None and (view.problem, view.lag_seconds, view.events_behind) == ("", 0, 4)
    clock.forward(9.0)
    assert copier.lag_seconds() == 9


async def test_a_place_that_is_not_mounted_gets_no_files(tmp_path: Path) -> None:
    home, place, clock = tmp_path / "home", tmp_path / "second", VirtualClock(1.0)
    await filled(home, 1)
    place.mkdir()
    copier = SecondPlace(home, place, OWNER, clock, lambda: 1)
    await copier.copy(place)
    assert "mount the second place" in copier.problem and not list(place.glob("journal*"))


def test_a_place_of_another_coordinator_or_with_other_files_is_refused(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "second"
    make_place(place, home, OWNER)
    make_place(place, home, OWNER)
    with pytest.raises(Refused, match="of coordinator 0x0707"):
        make_place(place, home, replace(OWNER, coordinator=Address(b"\x08" * 20)))
    with pytest.raises(Refused, match="on chain 1 .*not of .* on chain 5"):
        make_place(place, home, replace(OWNER, chain_id=5))
    with pytest.raises(Refused, match="inside"):
        make_place(home / "second", home, OWNER)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    with pytest.raises(Refused, match="other files"):
        make_place(tmp_path / "photos", home, OWNER)
    with pytest.raises(Unavailable, match="mount"):
        check_place(tmp_path / "photos")
    with pytest.raises(Refused, match="no copy was ever whole"):
        check_place(place)


async def test_a_place_with_settings_of_another_network_is_not_restored(
    stage: Stage, tmp_path: Path
) -> None:
    home = stage.make_home(tmp_path / "password")
    place, new = tmp_path / "second", tmp_path / "new"
    assert typed("coordinator", "backup", str(place), "--home", str(home))[0] == 0
    await filled(home, 3)
    assert typed("coordinator", "backup", str(place), "--home", str(home))[0] == 0
    settings = settings_file.read(place)
    other = replace(settings, deployment=replace(stage.deployment, chain_id=5))
    settings_file.write(place, other)
    for words in (("--check",), ()):
        code, text = typed("coordinator", "restore", str(place), "--home", str(new), *words)
        assert code == 3 and "on chain 5 " in text and "put back" in text, text
    assert not new.exists()
    settings_file.write(home, other)
    code, text = typed("coordinator", "backup", str(place), "--home", str(home))
    assert code == 3 and "name another folder" in text, text
    settings_file.write(place, settings)
    new.mkdir()
    (new / "restored").touch()
    code, text = typed("coordinator", "restore", str(place), "--home", str(new))
    assert code == 3 and "not empty" in text, "an interrupted one is not continued"


def test_a_place_that_takes_no_files_is_refused_by_name(stage: Stage, tmp_path: Path) -> None:
    home = stage.make_home(tmp_path / "password")
    for place in ("/proc/second", str(home / "coordinator.json" / "second")):
        code, text = typed("coordinator", "backup", place, "--home", str(home))
        assert code == 3 and place in text, text
    code, text = typed("coordinator", "backup", "s3://second", "--home", str(home))
    assert code == 2 and "mount it" in text, text
    assert not settings_file.read(home).backup


async def test_the_copy_of_a_stopped_coordinator_is_whole(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "second"
    make_place(place, home, OWNER)
    await filled(home, 40)
    second_place.copy_once(home, place, OWNER, 77)
    assert check_copy(place / "journal")[0] == 40
    assert (read_marker(place).copied_at, read_marker(place).offset) == (77, 40)


async def test_runs_log_lines_and_documents_are_copied_and_deleted_as_in_the_home(
    tmp_path: Path,
) -> None:
    home, place = tmp_path / "home", tmp_path / "second"
    make_place(place, home, OWNER)
    await filled(home, 2)
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    runs = []
    for number in range(3):
        job_id = market.order(0, number + 1)
        market.until_archived(job_id)
        runs.append(market.archive.run(job_id))
    archive, file = FileArchive(home / ARCHIVE), DocumentFile(home / DOCUMENTS, KEEPING)
    documents = [b"document %d" % number for number in range(3)]
    for run, data in zip(runs, documents, strict=True):
        assert run is not None
        archive.keep([run])
        number = archive.line_count()
        archive.append([(number, data)])
        await file.put(data)
        second_place.copy_once(home, place, OWNER, 1)
    copy, stored = FileArchive(place / ARCHIVE), DocumentFile(place / DOCUMENTS, KEEPING)
    assert [copy.run(run.run.job_id) for run in runs if run is not None] == runs
    assert copy.lines_after(-1, 9) == archive.lines_after(-1, 9) and copy.line_count() == 3
    assert [stored.get(sha256(data)) for data in documents] == documents
    first = runs[0]
    assert first is not None
    archive.forget([first], frozenset())
    second_place.copy_once(home, place, OWNER, 2)
    assert copy.run(first.run.job_id) is None and copy.count() == archive.count() == 3
    for opened in (archive, file, copy, stored):
        opened.close()
