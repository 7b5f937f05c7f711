"""`quorate reputation` against the coordinator's own routes, and from a file alone."""

import asyncio
import json
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.profile import create_profile
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_coordinator.core import views
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages import envelope
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.rules.reputation import fold, rank
from quorate_protocol.units import ZERO_ADDRESS, Address, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.logged_market import JOBS, serving_log, sixty_jobs
from support.markets.scripted_market import COORDINATOR, DOMAIN, STATEMENT


async def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(run_main, ["reputation", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile of the user's own machine is read."""
    monkeypatch.setenv("QUORATE_HOME", str(tmp_path / "nobody"))


@pytest.mark.rule("7.2", "7.29")
@pytest.mark.usefixtures("home")
async def test_a_file_alone_gives_the_coordinators_own_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market, file = sixty_jobs(), tmp_path / "log.jsonl"
    async with serving_log(market, market.lines) as url:
        code, out, err = await call(capsys, "--url", url, "--save", str(file), "--json")
        assert code == 0, err
        asked = json.loads(out)
        (log,) = asked["logs"]
        assert asked["equal"] and log["compared"] and log["lines"] >= JOBS
        assert "log's own word" in err and not log["pinned"]
        provider = next(iter(log["providers"]))
        code, out, _ = await call(capsys, provider, "--url", url)
        assert code == 0 and provider in out and "AUDITS" in out
    code, out, _ = await call(capsys, "--log", str(file), "--json")
    alone = json.loads(out)
    assert code == 0 and alone["logs"][0]["providers"] == log["providers"]
    assert alone["equal"] is None, "nobody was asked"
    assert log["providers"] == {
        f"0x{owner.hex()}": canonical.to_json(fold.view_of(known))
        for owner, known in market.core.state.trust.items()
    }


@pytest.mark.rule("4.68")
def test_the_rank_of_an_offer_follows_from_the_log() -> None:
    market, trusts = sixty_jobs(), dict[Address, fold.Trusts]()
    for line in market.lines:
        trusts.update(fold.after_summary(trusts, line.message))
    shown = views.offer_views(market.core.state, UnixSeconds(market.at), 100)
    ranks = {view.offer.provider: view.rank_ppm[0] for view in shown}
    assert ranks == {
        owner: rank.rank_ppm(trusts.get(owner), UnixSeconds(market.at), 0) for owner in ranks
    }
    liar, mute, _, *good = market.parties
    assert ranks[liar] > 1_000_000 and ranks[mute] > 1_000_000
    assert min(ranks[owner] for owner in good) < 1_000_000


@pytest.mark.rule("7.24")
@pytest.mark.usefixtures("home")
async def test_a_rewritten_line_is_refused_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market, file = sixty_jobs(), tmp_path / "log.jsonl"
    lines = list(market.lines)
    lines[11] = Envelope(replace(lines[11].message, time=lines[12].message.time), lines[11].sig)
    async with serving_log(market, lines) as url:
        code, out, err = await call(capsys, "--url", url, "--save", str(file), "--json")
    assert code == ExitCode.INVALID_EVIDENCE and "line 11" in err and not file.exists()
    assert json.loads(out)["exitCode"] == ExitCode.INVALID_EVIDENCE


@pytest.mark.rule("7.29")
@pytest.mark.usefixtures("home")
async def test_numbers_that_the_log_does_not_give_are_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    market = sixty_jobs()
    owner = next(iter(market.core.state.trust))
    true = market.core.state.trust[owner]
    with market.core.state.transaction():
        market.core.state.trust[owner] = replace(true, audits_passed=true.audits_passed + 1)
    try:
        async with serving_log(market, market.lines) as url:
            code, out, err = await call(capsys, "--url", url, "--json")
    finally:
        with market.core.state.transaction():
            market.core.state.trust[owner] = true
    assert code == ExitCode.INVALID_EVIDENCE and not json.loads(out)["equal"]
    assert f"0x{owner.hex()}: audits passed: the coordinator says" in err


@pytest.mark.rule("7.30")
@pytest.mark.usefixtures("home")
async def test_a_coordinator_that_signs_two_logs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    another_log(one, COORDINATOR.address, STATEMENT, lines=30)
    another_log(other, COORDINATOR.address, STATEMENT, lines=20, cut=7)
    code, _, err = await call(capsys, "--log", str(one), "--log", str(other))
    assert code == ExitCode.INVALID_EVIDENCE and "signed two logs: line 7" in err
    another_log(other, COORDINATOR.address, STATEMENT, lines=20)
    code, _, err = await call(capsys, "--log", str(one), "--log", str(other))
    assert code == 0, "an older copy of a log is no other log"


@pytest.mark.rule("7.30")
@pytest.mark.usefixtures("home")
async def test_logs_of_two_coordinators_are_shown_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, key = tmp_path / "one.jsonl", tmp_path / "other.jsonl", KeySigner(b"\x66" * 32)
    another_log(one, COORDINATOR.address, STATEMENT, lines=30)
    another_log(other, key.address, key, lines=20, cut=7)
    provider = f"0x{sixty_jobs().lines[7].message.executions[0].provider.hex()}"
    code, out, err = await call(capsys, provider, "--log", str(one), "--log", str(other))
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[0] for row in rows] == [provider, provider]
    assert [row[1] for row in rows] == [
        f"0x{account.hex()[:12]}" for account in (COORDINATOR.address, key.address)
    ]
    assert rows[0][2:] != rows[1][2:]


def another_log(
    file: Path, coordinator: Address, key: KeySigner, *, lines: int, cut: int | None = None
) -> None:
    """Writes a whole log that this key signed. In line `cut` one execution is missing."""
    log, body = Log(), []
    for line in sixty_jobs().lines[:lines]:
        left = 1 if log.count == cut else None
        message = replace(
            line.message,
            coordinator=coordinator,
            seq=Sequence(log.count),
            previous_root=log.root(),
            executions=line.message.executions[left:],
        )
        body.append(envelope.encode(seal(DOMAIN, message, key.sign)))
        log = log.append(digest(DOMAIN, message))
    head = ReputationHead(
        coordinator, key.address, DOMAIN.chain_id, DOMAIN.verifying_contract, lines, log.root()
    )
    file.write_bytes(b"\n".join([canonical.encode(head), *body]) + b"\n")


async def test_without_a_source_the_profile_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market = sixty_jobs()
    async with serving_log(market, market.lines) as url:
        create_profile(tmp_path / "home", url, "pass", "devnet")
        code, out, err = await call(capsys, "--home", str(tmp_path / "home"), "--json")
    assert code == 0 and json.loads(out)["equal"], err


@pytest.mark.rule("7.31")
async def test_a_log_that_contradicts_an_ack_of_this_profile_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market, file, home = sixty_jobs(), tmp_path / "other.jsonl", tmp_path / "home"
    another_log(file, COORDINATOR.address, STATEMENT, lines=JOBS, cut=7)
    async with serving_log(market, market.lines) as url:
        profile = create_profile(home, url, "pass", "devnet")
        known = CoordinatorIdentity(
            COORDINATOR.address,
            STATEMENT.address,
            DOMAIN.chain_id,
            DOMAIN.verifying_contract,
            *(ZERO_ADDRESS, ZERO_ADDRESS, b"", 2, 1, "devnet"),
        )
        profile.pins_path.write_bytes(canonical.encode(known))
        ledger = Ledger(profile.ledger_path)
        for job in market.core.state.jobs.values():
            order, session = job.submission.order.message, envelope.encode(job.submission.session)
            ledger.record(OrderRecord(job.id, "", order, b"", session, 1, None, None))
            ledger.acknowledge(job.id, envelope.encode(job.ack), job.reserved)
        ledger.close()
        code, out, err = await call(capsys, "--home", str(home), "--json")
        (log,) = json.loads(out)["logs"]
        assert code == 0 and log["pinned"] and log["acksChecked"] > 20, err
    code, _, err = await call(capsys, "--home", str(home), "--log", str(file))
    assert code == ExitCode.INVALID_EVIDENCE and "was rewritten" in err
