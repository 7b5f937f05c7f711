"""The shell opens two outputs, which strangers wrote, and reports how far they are apart."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import seal_directory
from quorate_coordinator.core.model.effects import CompareOutputs
from quorate_coordinator.core.model.entities import Comparison
from quorate_coordinator.core.model.events import OutputsCompared
from quorate_coordinator.core.model.lease import Revealed
from quorate_coordinator.storage import output_comparer
from quorate_coordinator.storage.output_comparer import OutputComparer
from quorate_protocol.messages.job_spec import Compare, Resources
from quorate_protocol.messages.signed import Reveal
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Comparator, ExitStatus, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock

JOB, ONE, OTHER = (Hash32(bytes([number]) * 32) for number in range(3))
LONG_AGO, SOON = UnixSeconds(1), UnixSeconds(2**31)
EFFECT = CompareOutputs("compare", JOB, ONE, OTHER, ZERO_ADDRESS, SOON)


class Stage:
    """A comparer with two sealed outputs in its store, which its state names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reported = folder, list[OutputsCompared]()
        spec = SimpleNamespace(compare=Compare(Comparator.NUMERIC, ("*.npy",)))
        spec.resources = Resources()
        job = SimpleNamespace(submission=SimpleNamespace(spec=spec))
        job.comparisons = (Comparison(ONE, OTHER),)
        self.jobs, self.leases = {JOB: job}, dict[Hash32, Any]()
        self.store = ContentStore(folder / "store", 1 << 30)
        parts: Any = self, self.store, folder / "compared", SystemClock(), self.report
        self.comparer = OutputComparer(*parts)
        self.comparer.clear()

    async def report(self, event: OutputsCompared) -> None:
        self.reported.append(event)

    async def put(self, name: Hash32, values: list[float], is_stored: bool = True) -> None:
        output, sealed = self.folder / name.hex()[:4], self.folder / f"{name.hex()[:4]}.sealed"
        output.mkdir()
        np.save(output / "x.npy", np.array(values))
        digest, cid, _ = seal_directory(output, name, sealed)
        if is_stored:
            await self.store.put(sealed.read_bytes(), "test")
        commit: Any = SimpleNamespace(message=SimpleNamespace(encrypted_output=cid.digest))
        reveal = Reveal(name, ZERO_ADDRESS, ExitStatus(0), digest, name)
        self.leases[name] = SimpleNamespace(phase=Revealed(commit, reveal, name))

    async def distance(self, until: UnixSeconds = SOON) -> int | None:
        await self.comparer(replace(EFFECT, until=until))
        assert not list((self.folder / "compared").iterdir()), "nothing stays open"
        return self.reported.pop().ppb


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    await made.store.close()


async def test_two_outputs_are_opened_compared_and_removed(stage: Stage) -> None:
    await stage.put(ONE, [1.0, 2.0])
    await stage.put(OTHER, [1.0, 2.0 + 2e-9])
    assert await stage.distance() == 1
    (stage.folder / "compared" / "left").mkdir()
    stage.comparer.clear()
    assert not list((stage.folder / "compared").iterdir()), "after a crash"
    stage.jobs.clear()
    await stage.comparer(EFFECT)
    assert not stage.reported, "it was reported before a crash"


async def test_what_is_missing_is_awaited_and_then_counts_as_different(stage: Stage) -> None:
    await stage.put(ONE, [1.0])
    await stage.put(OTHER, [1.0], is_stored=False)
    with pytest.raises(Unavailable, match="not in the store"):
        await stage.distance()
    assert await stage.distance(LONG_AGO) is None


@pytest.mark.parametrize(
    ("program", "until"),
    [
        ("import os; os.kill(os.getpid(), 9)", LONG_AGO),
        ("import os; os.abort()", SOON),
        ("raise SystemExit(3)", SOON),
    ],
)
async def test_outputs_whose_comparison_dies_are_different(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, until: UnixSeconds
) -> None:
    """A kill from outside is tried again for a while; what repeats is not."""
    await stage.put(ONE, [1.0])
    await stage.put(OTHER, [2.0])
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncat > /dev/null\nexec python3 -c "{program}"\n')
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    assert await stage.distance(until) is None
    if until == LONG_AGO:
        with pytest.raises(Unavailable, match="ended with -9"):
            await stage.distance()


async def test_few_places_of_the_outbox_wait_for_comparisons(stage: Stage) -> None:
    stage.comparer._waiting = output_comparer.WAITING_MAX
    with pytest.raises(Unavailable, match="many outputs wait"):
        await stage.distance()
