"""Tests the job runner: outputs without a CID, publishing after a crash, and pins that a crash
left.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.core import effects, events
from quorate_node.core.jury_duty import Repeating
from quorate_node.core.phases import Starting
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import jury_lease_id, unwanted_pins
from quorate_node.effect_performer import EffectPerformer
from quorate_node.executors.job_runner import JobRunner
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.market.content_sources import JobSources
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.owner.court_follower import CourtFollower
from quorate_node.owner.jury import JuryService
from quorate_node.periodic import write_status
from quorate_protocol.limits import DEVNET, MAINNET, Limits
from quorate_protocol.messages.classes import GVISOR
from quorate_protocol.messages.input_sources import FolderFile, SourceFolder
from quorate_protocol.messages.job_spec import Input as JobInput
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import Clock, EngineRefuses, Task
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Bps, ExitStatus, Hash32, Seconds, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import PeerKey
from support.http_server import on_loopback
from support.markets.provider_world import (
    COORDINATOR,
    CPUS,
    GENESIS,
    OPERATOR,
    PROVIDER,
    STATEMENT_KEY,
    Driver,
    case_names,
    case_opened,
    jury_drawn,
    make_spec,
    make_terms,
)
from support.offers import MACHINE, class_of
from support.virtual_clock import VirtualClock
from support.web_files import WebFiles

LEASE = "ab" * 32
SALT = Hash32(b"\x07" * 32)
CASE = case_names()[1]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 1 << 24)
    yield made
    await made.close()


def make_runner(folder: Path, store: ContentStore) -> JobRunner:
    return JobRunner(
        NoopExecutor(folder / "noop", SystemClock()),
        store,
        folder / "home",
        SystemClock(),
        {CPUS.id(): MACHINE},
    )


async def exited_task(folder: Path, store: ContentStore) -> JobRunner:
    """Returns a job runner whose executor holds the outputs of an exited task."""
    runner = make_runner(folder, store)
    spec = replace(make_spec(), image=str((await store.put(b"image", "me")).cid), image_bytes=5)
    await runner.fetch(LEASE, spec, JobSources(), 5.0)
    await runner.start(LEASE, spec, CPUS.id())
    return runner


@pytest.mark.rule("3.31")
async def test_output_that_content_addressing_refuses_becomes_the_empty_directory(
    tmp_path: Path, store: ContentStore
) -> None:
    """Folders may be 64 deep on disk and yet too deep for a CID. If that were a failure, every
    provider would run the job without pay.
    """
    runner = await exited_task(tmp_path, store)
    (tmp_path / "noop" / LEASE / "outputs").joinpath(*["d"] * 64).mkdir(parents=True)
    output = await runner.collect(LEASE, ExitStatus(0))
    (tmp_path / "empty").mkdir()
    assert output.digest == cid_of_path(tmp_path / "empty").digest
    assert "depth of directories" in output.note
    assert (await runner.collect(LEASE, ExitStatus(0))).digest == output.digest
    await runner.remove(LEASE)
    assert await runner.pinned() == ()


async def test_publishing_again_after_a_crash_gives_the_same_output_and_ciphertext(
    tmp_path: Path, store: ContentStore
) -> None:
    """A crash repeats the whole `PublishOutput`. A second result for one assignment would be a
    fault.
    """
    runner = await exited_task(tmp_path, store)
    first = await runner.collect(LEASE, ExitStatus(0))
    ciphertext = await runner.seal(LEASE, first.digest, SALT)
    (tmp_path / "noop" / LEASE / "outputs" / "late").write_text("written after it was collected")
    again = make_runner(tmp_path, store)
    assert await again.collect(LEASE, ExitStatus(0)) == first
    assert await again.seal(LEASE, first.digest, SALT) == ciphertext


async def test_half_collected_outputs_are_collected_again(
    tmp_path: Path, store: ContentStore
) -> None:
    """A power cut may lose the files of a folder whose digest was not recorded yet."""
    runner = await exited_task(tmp_path, store)
    whole = await runner.collect(LEASE, ExitStatus(0))
    await runner.remove(LEASE)
    runner = await exited_task(tmp_path, store)
    (tmp_path / "home" / "outputs" / LEASE).mkdir()
    assert await runner.collect(LEASE, ExitStatus(0)) == whole


async def test_output_that_changed_on_disk_after_it_was_collected_is_not_published(
    tmp_path: Path, store: ContentStore
) -> None:
    runner = await exited_task(tmp_path, store)
    output = await runner.collect(LEASE, ExitStatus(0))
    (tmp_path / "home" / "outputs" / LEASE / "more").write_text("x")
    with pytest.raises(Refused) as refused:
        await runner.seal(LEASE, output.digest, SALT)
    assert refused.value.code is Code.DOES_NOT_OPEN


@pytest.mark.rule("4.83", "4.85")
async def test_inputs_come_from_their_sources_and_are_mounted(
    tmp_path: Path, store: ContentStore, socket_enabled: None
) -> None:
    files = {"config.json": b"{}", "sub/w": b"weights"}
    served = WebFiles({f"/m/{path}": data for path, data in files.items()} | {"/one": b"one"})
    folder = SourceFolder(
        tuple(FolderFile(str(raw_cid(data)), path, len(data)) for path, data in files.items())
    )
    image, document = await store.put(b"image", "me"), await store.put(folder.encode(), "me")
    async with on_loopback(served.app()) as url:
        spec = replace(
            make_spec(),
            image=str(image.cid),
            image_bytes=5,
            inputs=(
                JobInput(str(document.cid), "/inputs/m", 9, f"{url}/m/"),
                JobInput(str(raw_cid(b"one")), "/inputs/one", 3, f"{url}/one"),
            ),
        )
        runner = make_runner(tmp_path, store)
        small = replace(spec, inputs=(replace(spec.inputs[0], size_bytes=8),))
        with pytest.raises(Refused, match="lists 9 bytes, and 8 are declared"):
            await runner.fetch(LEASE, small, JobSources(may_be_private=True), 5.0)
        with pytest.raises(Unavailable, match="own network"):
            await runner.fetch(LEASE, spec, JobSources(), 5.0)
        await runner.fetch(LEASE, spec, JobSources(may_be_private=True), 5.0)
    task = await runner._task(LEASE, spec, CPUS.id(), ())
    model, one = (mount.source for mount in task.mounts)
    assert {path: (model / path).read_bytes() for path in files} == files
    assert one.read_bytes() == b"one"
    assert runner.store.fetched.by_source() == {f"source {url[7:]}": 12}
    await runner.remove(LEASE)
    assert await runner.pinned() == ()


class Reported:
    """Collects the events that jury service submits."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    async def submit(self, event: events.Event) -> None:
        self.events.append(event)


@pytest.mark.rule("5.147")
@pytest.mark.parametrize("lacks", ["an input", "a duty"])
async def test_a_juror_unpins_inputs_of_a_case_that_it_could_not_execute(
    tmp_path: Path, store: ContentStore, lacks: str
) -> None:
    """Pins do not expire, so a case without its last input could fill a juror's store for ever."""
    runner, reported = make_runner(tmp_path, store), Reported()
    image = await store.put(b"image", "me")
    spec = replace(
        make_spec(),
        image=str(image.cid),
        image_bytes=5,
        inputs=(JobInput(str(raw_cid(b"withheld")), "/inputs/x", 8),),
    )
    await store.put(spec.encode(), "me")
    driver = Driver(ProviderCore(make_terms()))
    if lacks == "an input":
        driver.do(case_opened(spec_hash=spec.digest()))
        driver.do(jury_drawn(PROVIDER))
        assert isinstance(driver.core.jury[CASE].phase, Repeating)
    await store.pin(image.cid, f"lease:{jury_lease_id(CASE, PROVIDER)}")
    coordinators: dict[Address, object] = {}
    # the test uses no chain
    court = JuryService(driver.core, runner, coordinators, None, None, None, None, SystemClock())  # type: ignore[arg-type]
    soon = UnixSeconds(int(SystemClock().now()) + 2)
    await court.perform(repeat_of(spec, soon), reported.submit)
    assert reported.events == ([events.Reexecuted(CASE, ZERO_HASH)] if lacks == "an input" else [])
    assert await runner.pinned() == ()


def repeat_of(
    spec: JobSpec, give_up_at: UnixSeconds, class_id: Hash32 | None = None
) -> effects.Reexecute:
    return effects.Reexecute(CASE, spec.digest(), CPUS.id(), class_id or class_of(spec), give_up_at)


def court_of(driver: Driver, runner: JobRunner, clock: Clock, spec: JobSpec) -> JuryService:
    """A juror that has been drawn for a case about this job."""
    driver.do(case_opened(spec_hash=spec.digest(), class_id=class_of(spec)))
    driver.do(jury_drawn(PROVIDER))
    # the test uses no chain
    return JuryService(driver.core, runner, {}, None, None, None, None, clock)  # type: ignore[arg-type]


@pytest.mark.rule("5.147")
async def test_a_juror_of_another_determinism_class_votes_void(
    tmp_path: Path, store: ContentStore
) -> None:
    """It executes nothing: what it finds would say nothing about the two results."""
    runner, reported, clock = make_runner(tmp_path, store), Reported(), VirtualClock(GENESIS)
    spec = replace(make_spec(), image=str((await store.put(b"image", "me")).cid), image_bytes=5)
    await store.put(spec.encode(), "me")
    court = court_of(Driver(ProviderCore(make_terms())), runner, clock, spec)
    other = class_of(spec, replace(MACHINE, sandbox=GVISOR))
    again = repeat_of(spec, UnixSeconds(GENESIS + 60), other)
    await court.perform(again, reported.submit)
    assert reported.events == [events.Reexecuted(CASE, ZERO_HASH)]
    assert not await runner.executor.leases() and not await runner.pinned()


class RefusingExecutor(NoopExecutor):
    """An executor whose engine answers but starts nothing."""

    async def start(self, task: Task) -> None:
        raise EngineRefuses(Code.UNSUPPORTED, f"{task.lease_id}: no space left on device")


async def test_juror_whose_engine_refuses_tries_again_until_its_deadline(
    tmp_path: Path, store: ContentStore
) -> None:
    """A void vote after half a minute of a full disk would cost the juror its pay and the case a
    juror.
    """
    runner, reported, clock = make_runner(tmp_path, store), Reported(), VirtualClock(GENESIS)
    runner.executor = RefusingExecutor(tmp_path / "noop", clock)
    spec = replace(make_spec(), image=str((await store.put(b"image", "me")).cid), image_bytes=5)
    await store.put(spec.encode(), "me")
    driver = Driver(ProviderCore(make_terms()))
    court = court_of(driver, runner, clock, spec)
    again = repeat_of(spec, UnixSeconds(GENESIS + 60))
    with pytest.raises(Unavailable, match="no space left"):
        await court.perform(again, reported.submit)
    assert reported.events == []
    clock.forward(61)
    await court.perform(again, reported.submit)
    assert reported.events == [events.Reexecuted(CASE, ZERO_HASH)]
    assert await runner.pinned() == ()


async def test_machine_without_disk_or_processes_makes_effects_unavailable(
    tmp_path: Path, store: ContentStore
) -> None:
    """The daemon goes on, and the lease lapses at its own deadline."""
    runner, driver = make_runner(tmp_path, store), Driver(ProviderCore(make_terms()))
    (tmp_path / "noop").write_text("no folder")
    lease = driver.assign()
    driver.advance(lease, Starting)
    unused: Any = None  # the effect signs and reports nothing
    performer = EffectPerformer(
        driver.core, unused, runner, {}, {}, unused, unused, unused, unused, SystemClock()
    )
    due = driver.core.resume()
    assert [type(item) for item in due] == [effects.StartTask]
    with pytest.raises(Unavailable, match="Not a directory"):
        await performer.perform(due[0])


async def test_only_pinned_content_takes_room_in_the_store(store: ContentStore) -> None:
    before = await store.available_bytes()
    assert before == 1 << 24
    stat = await store.put(b"x" * (1 << 20), "sealed", None)
    assert await store.available_bytes() == before - (1 << 20)
    await store.unpin_all("sealed")
    assert await store.stat(stat.cid) is not None
    assert await store.available_bytes() == before


async def test_unwritable_status_file_and_damaged_court_cursor_do_not_end_the_daemon(
    tmp_path: Path,
) -> None:
    """A full disk and a power cut leave such files."""
    written = 0

    def write() -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise asyncio.CancelledError
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(asyncio.CancelledError):
        await write_status(write, VirtualClock())
    (tmp_path / "court.json").write_bytes(b"")
    # the test uses no chain
    court_follower = CourtFollower(None, None, Reported(), VirtualClock(), tmp_path / "court.json")  # type: ignore[arg-type]
    assert court_follower._read_cursor() is None


def test_pins_that_a_crash_left_are_found() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign().hex()
    driver.do(case_opened(spec_hash=ZERO_HASH))
    driver.do(jury_drawn(PROVIDER))
    repeated = jury_lease_id(CASE, PROVIDER)
    core = driver.core
    unwanted = unwanted_pins(core.live(), core.jury.values(), (lease, "ff" * 32, repeated))
    assert set(unwanted) == {"ff" * 32, repeated}, "the juror has no free slot, so it has not begun"


@pytest.mark.rule("4.66")
@pytest.mark.parametrize(("limits", "may_be_private"), [(MAINNET, False), (DEVNET, True)])
def test_only_the_coordinators_own_store_may_be_in_the_owners_network(
    limits: Limits, may_be_private: bool
) -> None:
    """An assignment names the other gateways, and it may name any address. On a devnet all
    gateways may be in the owner's network.
    """
    beacon = BeaconView("", bytes(96), Seconds(2), GENESIS)
    info = InfoView(
        COORDINATOR, STATEMENT_KEY.address, 31337, "", {}, beacon, Bps(0), limits.name, "0"
    )
    operator_keys = OperatorKeys(
        ProviderKeys(PROVIDER, PROVIDER, OPERATOR, PeerKey(ZERO_HASH), ZERO_HASH, None)
    )
    # the test sends no request
    coordinator = Coordinator(
        "http://10.0.0.7:1", info, None, PROVIDER, operator_keys, SystemClock()
    )  # type: ignore[arg-type]
    sources = coordinator.sources(("http://10.0.0.7:1/v1/content/", "http://10.0.0.7:2/reboot"))
    (own,), (other,) = sources.stores, sources.named
    assert (own.url, own.may_be_private, bool(own.headers)) == (
        "http://10.0.0.7:1/v1/content",
        True,
        True,
    )
    assert (other.url, other.may_be_private, bool(other.headers)) == (
        "http://10.0.0.7:2/reboot",
        may_be_private,
        False,
    )


def test_failure_with_an_unprintable_name_can_be_journaled() -> None:
    """Names in JSON and tar archives may have lone surrogates. The event of a failed lease
    quotes such names.
    """
    why = str(Refused(Code.UNSUPPORTED, "image: sets LD_\ud800, and has \udcff/layer.tar"))
    codec: PackedCodec[events.Event, effects.Effect] = PackedCodec(events.Event, effects.Effect)
    event = events.TaskFailed(Hash32(bytes(32)), why)
    assert codec.decode_event(codec.version, codec.encode_event(event)) == event
    assert "LD_\\ud800" in why
    assert Refused(Code.UNKNOWN, "größer").detail == "größer"
