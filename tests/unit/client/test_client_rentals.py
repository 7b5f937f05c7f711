"""Tests the client's side of rentals without a market: jobs, money, SSH files, and the stream."""

import json
import shutil
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest

from quorate.base.errors import UsageError
from quorate.cli import stream
from quorate.cli.ways_in import _must_be_free
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.signed_requests import draft_order
from quorate.client.money import rental_charges
from quorate.job.job import Job
from quorate.job.jobfile import parse_job
from quorate.job.packing import pack
from quorate.rentals.homes import HOME_MOUNT, PACK, UNPACK, KeptHome, keep_home, with_home
from quorate.rentals.ssh_files import Host, SshFiles, run_tool
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.job_spec import is_public_key
from quorate_protocol.messages.views import RentalView
from quorate_protocol.units import (
    Address,
    Amount,
    Bps,
    Hash32,
    JobKind,
    Milliseconds,
    Nonce,
    Price,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace as changed

IMAGE = "python@sha256:" + "0" * 64
JOB = Job(image=IMAGE, max_price="3.6", type="dev-environment", ahead="1h", name="box")
CLIENT, COORDINATOR = Address(b"\1" * 20), Address(b"\2" * 20)
ID = Hash32(b"\7" * 32)
ORDERED_AT = 1_700_000_000
FEE = Bps(200)


def entry() -> OrderRecord:
    spec = pack(JOB, {}).spec
    draft = draft_order(JOB, spec, CLIENT, COORDINATOR, FEE)
    order = changed(draft.stamped(Nonce(1), ORDERED_AT), max_fee_bps=FEE)
    record = OrderRecord(ID, "box", order, spec.encode(), b"", ORDERED_AT, None, None)
    return replace(record, reserved=draft.reserved)


def view(seconds: int, price: int = 3_600_000) -> RentalView:
    usage, started = Milliseconds(seconds * 1000), UnixSeconds(ORDERED_AT + 10)
    return RentalView(Address(bytes(20)), Price(price), usage, started)


def test_a_dev_environment_needs_no_command_and_is_ordered_without_verification() -> None:
    spec = pack(JOB, {}).spec
    order = draft_order(JOB, spec, CLIENT, COORDINATOR, FEE).order
    assert (spec.kind, spec.argv, spec.idle_stop) == (JobKind.DEV_ENVIRONMENT, (), 1800)
    assert (order.verify_tier, order.max_executions, order.caseable) == (VerifyTier.NONE, 1, False)
    assert spec.max_duration == 30 * 86_400, "vouchers say how long it goes on"
    file = f"image: {IMAGE}\nmax_price: 1\ntype: dev-environment\nfor: 8h\nidle_stop: 0\n"
    read = parse_job(file.encode(), Path())
    assert (read.ahead_seconds(), read.idle_seconds()) == (8 * 3600, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "gang"}, "type:"),
        ({"sweep": {"A": ["1"]}}, "sweep:"),
        ({"verify": "strict"}, "verify:"),
        ({"compare": "numeric", "tolerance": "0.1"}, "compare:"),
        ({"escrow": True}, "escrow"),
        ({"ahead": "soon"}, "for:"),
        ({"idle_stop": "soon"}, "idle_stop:"),
        ({"access": ["ssh-rsa me@home"]}, "access"),
        ({"type": "task", "home": "x"}, "home:"),
    ],
)
def test_what_a_rental_cannot_have_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError, match=field):
        replace(JOB, **change)  # type: ignore[arg-type]


@pytest.mark.rule("12.7")
def test_a_budget_below_the_longest_time_bounds_a_rental() -> None:
    spec = pack(JOB, {}).spec
    draft = draft_order(replace(JOB, budget="1"), spec, CLIENT, COORDINATOR, FEE)
    assert draft.order.budget == draft.worst_charge == draft.reserved == 1_000_000


def test_a_ledger_sums_what_orders_of_a_name_cost_and_may_cost(tmp_path: Path) -> None:
    ledger, budgets = Ledger(tmp_path / "ledger.sqlite"), entry().order.budget
    for number, name in enumerate(("mcp-1", "mcp-2", "mcp", "other")):
        record = replace(entry(), job_id=Hash32(bytes([number]) * 32), name=name)
        ledger.record(replace(record, order=changed(record.order, nonce=Nonce(number + 1))))
    assert ledger.named_with("mcp-") == (0, 2 * budgets)
    ledger.settle(Hash32(bytes(32)), Amount(7))
    assert ledger.named_with("mcp-") == (7, budgets)
    assert ledger.named_with("%") == (0, 0)


@pytest.mark.rule("12.27")
def test_a_charge_is_believed_up_to_the_time_and_price_of_the_order() -> None:
    now = ORDERED_AT + 110.0

    def believed(rental: RentalView, charged: int) -> int:
        return rental_charges.believed(entry(), rental, Amount(charged), now, DEVNET)

    assert believed(view(100), 102_000) == 102_000
    assert believed(view(100), 500_000) == 102_000, "more than its usage costs"
    assert believed(view(100, 36_000_000), 500_000) == 102_000, "above the ordered price"
    assert believed(view(9_000), 9_000_000) == 170 * 1020, "more time than has passed"
    assert believed(view(0), 2_040) == 2_040, "the least that a start costs"
    assert rental_charges.elapsed(entry(), view(60), now) == 100
    assert rental_charges.elapsed(entry(), changed(view(60), started_at=UnixSeconds(1)), now) == 110
    assert rental_charges.paid_until(entry(), view(0)) == ORDERED_AT + 10 + 3600


@pytest.mark.rule("12.27")
def test_vouchers_cover_what_a_rental_was_charged_and_may_still_cost(tmp_path: Path) -> None:
    ledger, lead = Ledger(tmp_path / "ledger.sqlite"), Amount(4_000_000)
    ledger.record(entry())
    ledger.meter(ID, Amount(1_000_000), Amount(10**9))
    totals = ledger.debt(COORDINATOR)
    assert (totals.charged, totals.promised) == (1_000_000, 3_672_000 - 1_000_000)
    assert not ledger.reserve(ID, Amount(5_000_001), lead), "more than the lead"
    assert ledger.reserve(ID, Amount(5_000_000), lead) and ledger.reserve(ID, Amount(1), lead)
    voucher = ledger.draft_voucher(CLIENT, COORDINATOR, lead, Amount(10**9), Amount(10**9))
    assert voucher is not None and voucher.cumulative == 5_000_000
    ledger.meter(ID, Amount(9_000_000), Amount(1))
    assert ledger.debt(COORDINATOR).charged == 5_000_000, "no more than it reserves"
    ledger.settle(ID, Amount(2_000_000))
    assert ledger.debt(COORDINATOR).charged == 2_000_000
    assert ledger.reserve(ID, Amount(10**9), lead), "it is over"
    ledger.close()


@pytest.mark.rule("12.28")
def test_a_rental_reserves_what_its_time_costs_once_its_price_is_known(tmp_path: Path) -> None:
    ledger, cheap = Ledger(tmp_path / "ledger.sqlite"), view(2, 360_000)
    ledger.record(entry())
    most = rental_charges.at_its_price(entry(), cheap, Amount(204), DEVNET)
    assert most == 367_200, "an hour, with the fee"
    ledger.meter(ID, Amount(0), Amount(1))
    ledger.meter(ID, Amount(204), most)
    assert ledger.debt(COORDINATOR).promised == most - 204
    assert ledger.reserve(ID, Amount(2 * most), Amount(10**9))
    ledger.meter(ID, Amount(408), most)
    known = ledger.entry(ID)
    assert known is not None and known.reserved == 2 * most, "what was extended stays"
    assert rental_charges.paid_until(known, cheap) == ORDERED_AT + 10 + 7200
    short = replace(entry(), reserved=Amount(20_400))  # the order allowed it
    assert rental_charges.at_its_price(short, cheap, Amount(204), DEVNET) == 20_400
    longer = replace(entry(), reserved=Amount(20_399))
    assert rental_charges.at_its_price(longer, cheap, Amount(204), DEVNET) == 204 + 2_040
    ledger.close()


@pytest.mark.rule("12.27")
def test_no_more_time_is_signed_than_the_order_has(tmp_path: Path) -> None:
    record, now = entry(), ORDERED_AT + 110.0
    assert rental_charges.time_left(record, view(100), now) == 30 * 86_400 - 100
    poor = replace(record, order=changed(record.order, budget=Amount(3_672_000)))
    assert rental_charges.time_left(poor, view(100), now) == 3500
    assert rental_charges.has_budget(poor) and not rental_charges.has_budget(record)


def test_a_home_is_a_folder_or_a_kept_one(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    kept = tmp_path / "home.tar.gz"
    kept.write_bytes(b"x")
    keep_home(tmp_path, "box", KeptHome("bafy", 1, str(kept)))
    found = with_home(replace(JOB, home="box"), tmp_path)
    assert found.inputs == {HOME_MOUNT: kept} and not found.home
    given = with_home(replace(JOB, home=tmp_path / "files"), tmp_path)
    assert given.inputs == {HOME_MOUNT: tmp_path / "files"}
    with pytest.raises(UsageError, match="home: 'gone' is no folder, and kept homes are: box"):
        with_home(replace(JOB, home="gone"), tmp_path)
    kept.unlink()
    with pytest.raises(UsageError, match="home.tar.gz of box is gone"):
        with_home(replace(JOB, home="box"), tmp_path)


def test_a_home_is_packed_and_unpacked_without_gzip(tmp_path: Path) -> None:
    programs, old, new = tmp_path / "bin", tmp_path / "old", tmp_path / "new"
    for folder in (programs, old, new):
        folder.mkdir()
    for name in ("tar", "touch"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (old / ".hidden").write_text("kept")
    packed = tmp_path / "home.tar"

    def run(script: str, home: Path) -> bytes:
        script = script.replace(HOME_MOUNT, "PACKED").replace("/home", str(home))
        words = ["/bin/sh", "-c", script.replace("PACKED", str(packed))]
        return subprocess.run(words, env={"PATH": str(programs)}, stdout=PIPE, check=True).stdout

    packed.write_bytes(run(PACK, old))
    run(UNPACK, new)
    assert (new / ".hidden").read_text() == "kept" and (new / ".quorate-unpacked").exists()


@pytest.mark.rule("12.24", "12.26")
def test_the_configuration_is_openssh_s_own_and_pins_the_host_key(tmp_path: Path) -> None:
    home = tmp_path / "a 50% profile"
    home.mkdir()
    files, host = SshFiles(home), Host("box", ID)
    assert is_public_key(files.public_key()) and files.public_key() == files.public_key()
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert not files.is_pinned(ID)
    files.pin(host, bytes(32))
    files.write_config([host], ["/opt/my tools/quorate", "stream", "--home", str(home)])
    read = run_tool("ssh", "-G", "-F", str(files.config), "quorate-box").decode()
    settings = dict(line.split(" ", 1) for line in read.splitlines() if " " in line)
    assert settings["userknownhostsfile"] == str(files.known_hosts(ID))
    assert settings["stricthostkeychecking"] == "true" and settings["user"] == "root"
    assert f"0x{ID.hex()}" in settings["proxycommand"] and "50%%" in settings["proxycommand"]
    user_config = tmp_path / "ssh" / "config"
    assert files.include_in(user_config) and not files.include_in(user_config)
    user_config.write_text("Host own\n    User me\n")
    assert files.include_in(user_config)
    assert user_config.read_text().splitlines()[0].startswith("Include ")
    assert "Host own" in user_config.read_text()


def test_a_stream_needs_a_token_of_today(tmp_path: Path) -> None:
    words = ["stream", "--home", str(tmp_path), f"0x{ID.hex()}"]
    (tmp_path / "client.json").write_text(json.dumps({"coordinator": "http://c:1/"}))
    assert stream.run(words) is None
    (tmp_path / "token.json").write_text(json.dumps({"token": "t", "expires": time.time() + 59}))
    assert stream.run(words) is None
    (tmp_path / "token.json").write_text(json.dumps({"token": "t", "expires": time.time() + 99}))
    assert stream.run([*words[:3], "box"]) is None and stream.run(["stream", "box"]) is None


def test_a_taken_port_is_named_with_what_the_command_takes_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(_address: object) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("socket.create_server", taken)
    with pytest.raises(UsageError, match="port: 80 .* such as --port 1104"):
        _must_be_free(80, "--port 1104")
