"""The benchmark of whole jobs runs. It goes through the coordinator's real actor, core, codec,
journal and archive, so it breaks when rules change and nobody looks at it.
"""

from pathlib import Path

import pytest

from bench import market_jobs
from bench.market_setup import Setup

JOBS = 60


@pytest.mark.parametrize("is_audited", [False, True])
async def test_every_job_of_the_benchmark_gets_its_verdict(
    tmp_path: Path, is_audited: bool
) -> None:
    found = await market_jobs.measure(tmp_path, Setup(JOBS, 16, True, is_audited))
    assert found.jobs_s > 0 and 0 < found.crypto_share < 1
    assert found.executions_per_job >= 1
