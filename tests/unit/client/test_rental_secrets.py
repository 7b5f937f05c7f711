"""A client's secrets: read from files and variables, sealed by order, and sent until it runs."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.base.errors import QuorateError, UnavailableError, UsageError
from quorate.cli.network_flags import NetworkFlags, with_network
from quorate.client import secret_sender
from quorate.client.secret_sender import AGAIN_SECONDS, SecretSender
from quorate.job.job import Job
from quorate.rentals import secrets as rental_secrets
from quorate.rentals.secrets import OrderSecrets, read_secrets
from quorate_protocol.messages.rental_secrets import decode
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.crypto import BoxKey

PROVIDER, STRANGER = BoxKey(b"\x02" * 32), BoxKey(b"\x03" * 32)
JOB = Hash32(b"\x11" * 32)
ENVIRON = {"TOKEN": "VerySecretToken", "PASS": "VerySecretPassword\n", "BAD": "\udcff"}


def read(folder: Path) -> OrderSecrets:
    (folder / "key.pem").write_bytes(b"VerySecretKey\x00\xff")
    named = [f"key.pem={folder / 'key.pem'}", "API_KEY=env:TOKEN"]
    found = read_secrets(named, "ghcr.io=me:env:PASS", "env:TOKEN", ENVIRON)
    assert found is not None
    return found


@pytest.mark.rule("12.33")
def test_only_the_provider_opens_what_only_the_client_can_have_sealed(tmp_path: Path) -> None:
    secrets = read(tmp_path)
    offer: Any = SimpleNamespace(box_key=PROVIDER.public)
    box = secrets.box_for(offer)
    opened = decode(PROVIDER.open(secrets.seal_key, box))
    assert opened == secrets.document
    assert opened.environment() == {"API_KEY": "VerySecretToken"}
    assert opened.registry is not None and opened.registry.password == "VerySecretPassword"
    assert [item.content for item in opened.files] == [b"VerySecretKey\x00\xff"]
    assert opened.headers_for("https://huggingface.co/a/b") and not opened.headers_for("https://x/")
    for key, sender in ((STRANGER, secrets.seal_key), (PROVIDER, STRANGER.public)):
        with pytest.raises(Refused):
            key.open(sender, box)
    assert read(tmp_path).seal_key != secrets.seal_key, "each order has a key of its own"
    job = Job(image="python:3.12", max_price="1", command=["true"])
    assert "VerySecret" not in repr((secrets, opened, job))


@pytest.mark.parametrize(
    ("named", "login", "token", "told"),
    [
        (["API_KEY"], "", "", "--secret: write NAME=FILE"),
        (["A=env:NONE"], "", "", "--secret: this program's environment has no NONE"),
        (["A=/none/such"], "", "", "--secret: /none/such: No such file"),
        (["A=env:TOKEN", "A=env:PASS"], "", "", "--secret: A is given twice"),
        (["A=env:BAD"], "", "", "--secret: the value is no UTF-8 text"),
        (["LD_PRELOAD=env:TOKEN"], "", "", "secrets.variables: at most"),
        ([], "ghcr.io", "", "--registry-login: write HOST=USER:FILE"),
        ([], "GHCR.io=me:env:TOKEN", "", "secrets.registry: its host"),
        ([], "", "env:NONE", "--hub-token: this program's environment has no NONE"),
    ],
)
def test_a_wrong_flag_is_named_without_a_value(
    named: list[str], login: str, token: str, told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read_secrets(named, login, token, ENVIRON)
    assert told in str(refused.value) and "VerySecret" not in str(refused.value)


def test_flags_make_a_sealed_job_that_only_a_rental_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_TEST_TOKEN", "x")
    job = Job(image="python:3.12", max_price="1", command=["true"])
    assert with_network(job, NetworkFlags()).secrets is None
    with pytest.raises(UsageError, match="egress: only a rental has it"):
        with_network(job, NetworkFlags(egress=["huggingface.co"]))
    with pytest.raises(UsageError, match="sealKey: only a rental has it"):
        with_network(job, NetworkFlags(secret=["A=env:QUORATE_TEST_TOKEN"]))
    with pytest.raises(UsageError, match="egress: write a list of host names"):
        replace(job, egress="huggingface.co")


@dataclass
class Coordinator:
    """As `Api`: a run whose executions the test sets, and the boxes that came."""

    executions: list[Any] = field(default_factory=list)
    boxes: list[bytes] = field(default_factory=list)
    phase: str = "running"
    error: QuorateError | None = None

    async def run(self, job_id: Hash32) -> Any:
        assert job_id == JOB
        return SimpleNamespace(phase=self.phase, executions=self.executions)

    async def secrets(self, job_id: Hash32, box: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.boxes.append(box)


@pytest.mark.rule("12.35")
async def test_secrets_are_sent_to_each_provider_until_the_rental_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets, now, api = read(tmp_path), [1_000.0], Coordinator()
    rental_secrets.keep(tmp_path, JOB, secrets)
    path = tmp_path / "secrets" / JOB.hex()
    assert path.stat().st_mode & 0o777 == 0o600 and rental_secrets.waiting(tmp_path)[JOB] == secrets
    gone = path.with_name("0" * 64)
    gone.symlink_to("sent")  # another program of the client removes it in this moment
    assert list(rental_secrets.waiting(tmp_path)) == [JOB]
    gone.unlink()
    told: list[str] = []
    session: Any = SimpleNamespace(
        api=api,
        clock=SimpleNamespace(now=lambda: now[0]),
        profile=SimpleNamespace(home=tmp_path),
        notice=told.append,
    )
    sender = SecretSender(session)

    async def offer(_session: Any, provider: Address) -> Any:
        return SimpleNamespace(box_key=BoxKey(provider + bytes(12)).public)

    monkeypatch.setattr(secret_sender, "offer_of", offer)

    def execution(number: int, phase: str) -> Any:
        digest, owner = Hash32(bytes([number]) * 32), Address(bytes([number]) * 20)
        return SimpleNamespace(assignment_hash=digest, provider=owner, phase=phase)

    async def look() -> int:
        await sender._look(JOB, secrets)
        return len(api.boxes)

    assert await look() == 0, "no provider has it yet"
    api.executions = [execution(1, "assigned")]
    assert await look() == 1 and await look() == 1
    now[0] += AGAIN_SECONDS
    assert await look() == 2, "its provider may have restarted"
    api.executions = [execution(1, "lapsed"), execution(2, "accepted")]
    api.error = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await look()
    api.error = None
    assert await look() == 3
    second = BoxKey(bytes([2]) * 20 + bytes(12))
    assert decode(second.open(secrets.seal_key, api.boxes[-1])) == secrets.document
    api.executions = [execution(2, "live")]
    assert await look() == 3 and not path.exists() and not rental_secrets.waiting(tmp_path)
    assert "VerySecret" not in "".join(told)
