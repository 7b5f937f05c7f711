"""The SDK's objects: the blocking twin has everything, ids print as hex, wrong types are named."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from quorate import Job, Market, sync
from quorate.base.errors import ProfileError, UsageError
from quorate.client import market as asynchronous
from quorate.client.base.profile import create_profile
from quorate.client.base.result import Result
from quorate.client.base.session import ClientSession
from quorate.client.run import Run
from quorate.programs import functions
from quorate.sandboxes.pool import Sandboxes
from quorate.sandboxes.sandbox import Sandbox
from quorate_protocol.messages.signed import Stop
from quorate_protocol.readable import text_of
from quorate_protocol.units import Amount, ExitStatus, Hash32, Label, UnixSeconds
from support.cli_prompt import password_file

TWINS = (
    (asynchronous.Market, sync.Market),
    (Run, sync.Run),
    (functions.RemoteFunction, sync.RemoteFunction),
    (functions.FunctionRun, sync.FunctionRun),
    (Sandbox, sync.Sandbox),
    (Sandboxes, sync.Sandboxes),
)
KEPT_TOGETHER = {"source", "call_text"}  # of a function: a twin has them in what it wraps


@pytest.mark.parametrize(("asynchronous_one", "blocking"), TWINS)
def test_the_blocking_twin_has_every_method_with_the_same_parameters(
    asynchronous_one: type, blocking: type
) -> None:
    names = {name for name in vars(asynchronous_one) if not name.startswith("_")} | {"__init__"}
    assert names - KEPT_TOGETHER <= {"run", *dir(blocking)}
    for name in sorted(names - KEPT_TOGETHER - {"run"}):
        ours, theirs = getattr(asynchronous_one, name), getattr(blocking, name)
        if not inspect.isfunction(ours) or (name == "__init__" and blocking is not sync.Market):
            continue
        parameters = [list(inspect.signature(item).parameters) for item in (ours, theirs)]
        assert parameters[0] == parameters[1], name


@pytest.fixture
def devnet(tmp_path: Path) -> Path:
    password_file(tmp_path, "pass")
    for name in ("alice", "bob"):
        create_profile(tmp_path / name, f"http://{name}:1", "pass", "devnet")
    clients = [
        {"name": name, "home": name, "passwordFile": "password"} for name in ("alice", "bob")
    ]
    (tmp_path / "devnet.json").write_text(json.dumps({"clients": clients}))
    return tmp_path / "devnet.json"


def test_a_market_opens_by_the_path_of_a_devnet(devnet: Path) -> None:
    assert "http://alice:1" in repr(Market(str(devnet)))
    assert "http://bob:1" in repr(Market(devnet.parent, client="bob"))
    assert "http://bob:1" in repr(sync.Market(devnet, client="bob"))
    with pytest.raises(ProfileError, match=r"no client 'carol'; it has alice, bob"):
        Market(devnet, client="carol")
    with pytest.raises(UsageError, match=r"profile: .* not int"):
        Market(7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"needs its passphrase; write Market\(open_profile"):
        Market(devnet.parent / "alice")
    with pytest.raises(ProfileError, match="does not exist"):
        Market("nowhere.json")


def test_ids_print_as_hex() -> None:
    job_id = Hash32(bytes(range(32)))
    assert f"0x{job_id.hex()}" in repr(Stop(job_id, UnixSeconds(1)))
    assert text_of((b"\x01", (b"ab" * 40,))) == "(0x01, (0x6162616261626162...(80 bytes),))"
    verdict: Any = None
    result = Result(
        job_id=job_id,
        exit_status=ExitStatus(0),
        output=Path("out"),
        verdict=verdict,
        rule=Label.QUORUM_2,
        providers=(),
        charged=Amount(204),
        receipt=Path("r.json"),
        receipt_cid="bafk",
    )
    assert repr(result) == (
        f"<Result 0x{job_id.hex()} exited with 0, quorum-2, 0.000204 USD, output='out'>"
    )
    session: Any = ClientSession
    assert repr(Run(session, session, job_id, "x")) == f"<Run 0x{job_id.hex()} name='x'>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", 7),
        ("command", [1]),
        ("args", "word"),
        ("inputs", {"/inputs/a": 1}),
        ("env", {"LR": 0.1}),
        ("resources", {"cpu": 0.5}),
        ("name", None),
        ("gateways", "http://a"),
        ("accept_unverified", 1),
        ("max_executions", "2"),
        ("outputs", "out"),
        ("workdir", 1),
        ("sweep", [1]),
        ("python", 3.12),
    ],
)
def test_a_field_of_a_wrong_type_is_named(field: str, value: object) -> None:
    fields = {"image": "python:3.12", "max_price": "1", field: value}
    with pytest.raises(UsageError, match=rf"^{field}: write "):
        Job(**fields)  # type: ignore[arg-type]
