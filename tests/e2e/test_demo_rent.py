"""Runs `quorate devnet demo-rent --json` as a user does: machines, sandboxes and a service."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.requirements import require

QUORATE = str(Path(sys.executable).with_name("quorate"))
SECONDS_MAX = 480  # twice its time: other tests may run beside it
FIELDS = {
    *("ssh_ok", "scp_mb_s", "shell_rtt_ms", "jupyter_ok", "egress", "service", "idle_stopped"),
    *("sandbox_start_p50_ms", "metered_equals_vouched", "exposure_s", "owner_yield_s", "seconds"),
}
RATES = ("scp_mb_s", "shell_rtt_ms", "sandbox_start_p50_ms", "service.added_p50_ms", "service.rps")
pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The demo runs once for all tests."""
    require("docker")
    command = [QUORATE, "devnet", "demo-rent", "--json"]
    command += ["--dir", str(tmp_path_factory.mktemp("demo-rent") / "devnet")]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


@pytest.fixture(scope="module")
def answer(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Its last line, when nothing was wrong but rates, which other tests share the machine with."""
    assert done.stdout, done.stderr
    wrong = [line for line in done.stderr.splitlines() if line.startswith("problem: ")]
    others = [line for line in wrong if line.split()[1] not in RATES]
    assert not others and (done.returncode == 0) == (not wrong), done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == FIELDS
    return found


def test_a_machine_is_entered_by_openssh_and_jupyter(answer: dict[str, Any]) -> None:
    assert answer["ssh_ok"] and answer["jupyter_ok"]
    assert answer["scp_mb_s"] > 3 and answer["shell_rtt_ms"] <= 1000
    assert 0 < answer["sandbox_start_p50_ms"] <= 5000


@pytest.mark.rule("12.30")
def test_pip_works_inside_and_nothing_of_the_owner_is_reached(answer: dict[str, Any]) -> None:
    assert answer["egress"]["pip_ok"] and answer["egress"]["lan_reached"] == 0
    assert answer["egress"]["lan_tried"] > 50


def test_a_killed_replica_breaks_only_the_streams_that_it_sent(answer: dict[str, Any]) -> None:
    service = answer["service"]
    assert service["requests"] == 2000 and service["replicas_max"] >= 2
    assert 0 < service["failed"] <= service["open_on_killed"] and not service["failed_otherwise"]
    assert service["rps"] > 30 and service["ttft_p50_ms"] > 0 and service["usd_per_mtok"] > 0


@pytest.mark.rule("12.7", "12.21", "12.27", "12.39")
def test_it_ends_idle_or_by_its_owner_and_is_charged_by_its_meters(answer: dict[str, Any]) -> None:
    assert answer["idle_stopped"] and answer["metered_equals_vouched"]
    assert answer["exposure_s"] <= 120 and answer["owner_yield_s"] <= 30
