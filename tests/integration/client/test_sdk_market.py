"""The client against a coordinator of its own kind: what it believes, what it signs, what it
refuses.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from quorate.client.client_ledger import Ledger
from quorate.client.market import Market
from quorate.client.profile import Profile, create_profile
from quorate.errors import (
    EvidenceError,
    NotVerifiedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from quorate.job.job import Job
from quorate.trust.receipt_verification import verify
from quorate_protocol.messages.envelope import seal
from quorate_protocol.refusals import Code
from quorate_protocol.rules import settlement
from quorate_protocol.units import Amount, Bps, Label, Round
from quorate_protocol.values import replace
from support.http_server import on_loopback
from support.markets.fake_market import Cheat, FakeMarket

IMAGE = "docker.io/library/python@sha256:" + "ab" * 32


def job(**changes: object) -> Job:
    return Job(
        **{
            "image": IMAGE,
            "command": ["python", "-c", "print(6*7)"],
            "max_price": "0.50",
            "max_duration": "60s",
            **changes,
        }
    )  # type: ignore[arg-type]


async def test_a_job_goes_in_and_a_checked_result_comes_out(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile) as market:
        run = await market.submit(job(name="answer"))
        result = await run.result()
        names = [event.name async for event in run.events()]
    assert (
        result.is_success and (result.output / "result.txt").read_text() == "python -c print(6*7)\n"
    )
    assert (result.output / "deep" / "empty").read_bytes() == b""
    assert names == ["acked", "committed", "witnessed", "closed", "verdict"]
    assert verify(result.receipt).valid
    assert len(set(result.providers)) == 2


async def test_who_names_a_host_class_is_told_its_owners_and_takes_no_other(
    fake: FakeMarket, profile: Profile
) -> None:
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        (row,) = await market.classes()
        plan = await market.plan(job(host_class=row.name))
        assert plan.host_class == row and row.owners == tuple(fake.owners)
        assert (await (await market.submit(job(host_class=row.name))).result()).is_success
        assert any(all(owner.hex() in notice for owner in fake.owners) for notice in notices), (
            notices
        )
        with pytest.raises(EvidenceError, match="host class is not the ordered one"):
            await market.submit(job(host_class="x86_64/v2/AuthenticAMD"))
    assert any("no provider offers it" in notice for notice in notices)


async def test_what_is_signed_is_what_was_shown(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        plan = await market.plan(job(budget="1"))
        run = await market.submit(job(budget="1"), plan)
        order = fake.jobs[run.job_id].submission.order.message
        assert order.max_fee_bps == plan.view.fee_bps and order.budget == plan.budget
        worst = max(
            settlement.worst_charge(order, rule, 60, order.max_fee_bps)
            for rule in (Label.QUORUM_2, Label.ADAPTIVE)
        )
        assert worst == plan.worst_charge, (
            "no fee that may still be chosen makes it dearer than was shown"
        )
        fake.cheat = Cheat(plan_fee=0)
        with pytest.raises(EvidenceError, match="its fee is 0 bps, and 500"):
            await market.plan(job())


async def test_a_fee_that_was_changed_while_a_program_runs_is_asked_for_again(
    fake: FakeMarket, profile: Profile
) -> None:
    """Each plan failed from then on, until the program was started anew."""
    async with Market(profile) as market:
        told = market.info
        market.info = replace(
            told, fee_bps=Bps(told.fee_bps - 100)
        )  # as it was when the program began
        plan = await market.plan(job())
        assert plan.view.fee_bps == market.info.fee_bps == told.fee_bps
        run = await market.submit(job(), plan)
        assert (
            fake.jobs[run.job_id].submission.order.message.budget
            == plan.budget
            == plan.worst_charge
        )


@asynccontextmanager
async def registry(manifest: bytes, said: str) -> AsyncIterator[str]:
    """`host:port` of one that has anybody/anything:tag, says so of its digest."""

    async def answer(_: web.Request) -> web.Response:
        kind = "application/vnd.oci.image.manifest.v1+json"
        return web.Response(
            body=manifest, content_type=kind, headers={"Docker-Content-Digest": said}
        )

    app = web.Application()
    app.router.add_get("/v2/{path:.+}", answer)
    async with on_loopback(app) as url:
        yield url.removeprefix("http://")


async def test_a_tag_is_a_digest_by_the_time_it_is_ordered(
    fake: FakeMarket, profile: Profile
) -> None:
    manifest = b'{"schemaVersion":2}'
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    notices: list[str] = []
    async with registry(manifest, digest) as host, Market(profile, notice=notices.append) as market:
        await (await market.submit(job(image=f"{host}/team/tool:1.2"))).result()
    (ordered,) = fake.jobs.values()
    assert ordered.submission.spec.image == f"{host}/team/tool@{digest}"
    assert any(f"{host}/team/tool:1.2" in notice and digest in notice for notice in notices), (
        notices
    )


async def test_a_registry_that_says_another_digest_than_it_sends_gets_no_order(
    fake: FakeMarket, profile: Profile
) -> None:
    async with (
        registry(b'{"schemaVersion":2}', "sha256:" + "0" * 64) as host,
        Market(profile) as market,
    ):
        with pytest.raises(EvidenceError, match="sent a manifest with digest"):
            await market.submit(job(image=f"{host}/team/tool:1.2"))
    assert not fake.jobs


@pytest.mark.rule("6.9")
async def test_the_voucher_covers_exactly_what_the_evidence_allows(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile) as market:
        for run in [await market.submit(job()) for _ in range(3)]:
            await run.result()
        orders = [item.submission.order.message for item in fake.jobs.values()]
        pay = 2 * (7_200 * 300_000 // 3_600_000)
        assert fake.charged == 3 * (pay + pay * 500 // 10_000)
        await _until(lambda: fake.vouched == fake.charged)
    last = fake.vouchers[-1].message
    assert last.cumulative == fake.charged
    assert last.nonce_floor == max(order.nonce for order in orders) + 1
    assert [v.message.cumulative for v in fake.vouchers] == sorted(
        v.message.cumulative for v in fake.vouchers
    )


@pytest.mark.rule("7.1")
async def test_an_overcharge_is_told_and_not_signed(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(charge_extra=1_000)
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        result = await (await market.submit(job())).result()
        await _until(lambda: fake.vouched > 0)
    assert fake.vouched == fake.charged - 1_000 == result.charged
    assert any("charge" in notice for notice in notices)


async def test_a_voucher_whose_session_ends_is_sent_again_under_a_new_one(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(is_session_ending=True)
    async with Market(profile) as market:
        await (await market.submit(job())).result()
        await _until(lambda: fake.vouched == fake.charged > 0)
    assert fake.posts["POST sessions"] == 1 and fake.posts["POST vouchers"] == 2


async def test_liars_are_outvoted_and_the_client_gets_the_honest_output(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(liars=frozenset({0}))
    async with Market(profile) as market:
        result = await (await market.submit(job())).result()
    assert "lie" not in (result.output / "result.txt").read_text()
    assert fake.owners[0] not in result.providers and len(result.verdict.faulted) == 1


@pytest.mark.rule("3.28", "3.35", "7.1")
@pytest.mark.parametrize(
    ("cheat", "named"),
    [
        (Cheat(crown_liar=True, liars=frozenset({0})), "verdict"),
        (Cheat(foreign_verdict_key=True), "signature:verdict"),
        (Cheat(price=600_000), "price"),
        (Cheat(wrong_class=True), "class"),
        (Cheat(ack_twice=True), "another Ack"),
        (Cheat(swap_ciphertext=True), "does not open"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_false_evidence_is_refused(
    fake: FakeMarket, profile: Profile, cheat: Cheat, named: str
) -> None:
    fake.cheat = cheat
    async with Market(profile) as market:
        with pytest.raises(EvidenceError, match=named):
            await (await market.submit(job())).result()
    assert not (profile.outputs.exists() and any(profile.outputs.iterdir()))
    if not cheat.swap_ciphertext:
        assert not fake.vouchers


async def test_the_result_of_another_run_of_ours_is_not_taken_for_this_ones(
    fake: FakeMarket, profile: Profile
) -> None:
    """Asked for one run, the coordinator told of another one of this client: its output, checked
    and all, was the result.
    """
    async with Market(profile) as market:
        await (await market.submit(job())).result()
        run = await market.submit(job(command=["python", "-c", "print(43)"]))
        fake.cheat = Cheat(another_run=True)
        with pytest.raises(EvidenceError, match="another run"):
            await run.result()
    assert [folder.name for folder in profile.outputs.iterdir()] == [next(iter(fake.jobs)).hex()]


@pytest.mark.rule("5.11")
async def test_a_commit_whose_round_has_appeared_is_not_witnessed(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(stale_round=True)
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        await (await market.submit(job())).result()
    assert all(item.witness is None for item in fake.jobs.values())
    assert any("already appeared" in notice for notice in notices)


@pytest.mark.rule("3.10")
async def test_an_ack_for_another_job_is_refused(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(ack_other_job=True)
    async with Market(profile) as market:
        with pytest.raises(EvidenceError, match="ack"):
            await market.submit(job())


async def test_inputs_are_uploaded_once(fake: FakeMarket, profile: Profile, tmp_path: Path) -> None:
    scene, folder = tmp_path / "scene.json", tmp_path / "data"
    scene.write_text("{}")
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "big.bin").write_bytes(bytes(range(256)) * 12_000)
    wanted = job(inputs={"/inputs/scene.json": scene, "/inputs/data": folder})
    async with Market(profile) as market:
        plan = await market.plan(wanted)
        assert plan.upload_bytes > 3_000_000
        await (await market.submit(wanted, plan)).result()
        assert (await market.plan(wanted)).upload_bytes == 0
        await (await market.submit(wanted)).result()
    assert fake.posts["PUT content"] == 2
    spec = next(iter(fake.jobs.values())).submission.spec
    assert [item.mount for item in spec.inputs] == [
        "/inputs/data",
        "/inputs/scene.json",
    ] and spec.inputs[1].size_bytes == 2


async def test_a_refused_order_is_forgotten(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(refuse_order=Code.OVER_ALLOCATION)
    async with Market(profile) as market:
        with pytest.raises(RefusedError) as refused:
            await market.submit(job())
        assert refused.value.code == "over-allocation" and not market.entries()


async def test_an_answer_lost_on_the_way_does_not_order_twice(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(drop_first_order=True)
    async with Market(profile) as market:
        run = await market.submit(job())
        await run.result()
    assert len(fake.jobs) == 1 and fake.posts["POST orders"] == 2


async def test_waiting_outlives_a_coordinator_that_starts_again(
    fake: FakeMarket, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.client.coordinator_api.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("quorate.client.run.RECONNECT_SECONDS", (0.01,))
    fake.cheat = Cheat(away=30)  # ten requests of three tries
    told: list[str] = []
    async with Market(profile, notice=told.append) as market:
        assert (await (await market.submit(job())).result()).is_success
    assert fake.cheat.away == 0 and any("continues" in sentence for sentence in told)


async def test_who_waits_for_a_run_that_is_not_over_is_told_once_what_for(
    fake: FakeMarket, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quorate get` of a run that was stopped while its image was fetched waited over a minute
    without a word.
    """
    monkeypatch.setattr("quorate.client.run.NOTICE_SECONDS", 0.0)
    monkeypatch.setattr("quorate.client.run.POLL_SECONDS", 0.01)
    fake.auto_finish = False
    told: list[str] = []

    def hear(sentence: str) -> None:
        told.append(sentence)
        next(iter(fake.jobs.values())).hold.set()  # it ends only after this

    async with Market(profile) as market:
        run = await market.submit(job())
        async with asyncio.timeout(20):
            assert (await run.result(waiting=hear)).is_success
        expiry = datetime.fromtimestamp(market.entry(run.job_id).order.expiry, UTC)
    (sentence,) = told
    assert (
        f"waiting for run {run.id[:14]}: running" in sentence
        and f"{expiry:%H:%M:%S} UTC" in sentence
        and "then 1m (max_dur" in sentence
    )


async def test_an_order_that_was_taken_is_not_forgotten_for_a_refusal_of_the_next_try(
    fake: FakeMarket, profile: Profile
) -> None:
    """Its answer was lost, the next try met a busy coordinator: the job ran, and this profile
    had never heard of it.
    """
    fake.cheat, fake.auto_finish = Cheat(drop_first_order=True, refuse_again=Code.BUSY), False
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        with pytest.raises(RefusedError, match="busy"):
            await market.submit(job())
        (name,) = fake.jobs
        fake.jobs[name].hold.set()
        assert any("quorate ps" in notice for notice in notices)
        assert (await (await market.run(name)).result()).charged == fake.charged
        await _until(lambda: fake.vouched == fake.charged)


async def test_a_run_is_found_however_many_came_after_it(
    fake: FakeMarket, profile: Profile
) -> None:
    """Only the newest thousand were looked through: a map has up to ten thousand."""
    async with Market(profile) as market:
        run = await market.submit(job(name="first"))
        with closing(sqlite3.connect(profile.ledger_path)) as books:
            books.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001) "
                "INSERT INTO orders SELECT"
                " randomblob(32), coordinator, nonce, 'other', \"order\", spec, session, "
                "submitted_at + 1, '7', outputs, ack"
                " FROM orders, n"
            )
            books.commit()
        for name in (run.job_id, run.id, run.id[:14], "first"):
            assert (await market.run(name)).job_id == run.job_id
        assert market.debt().charged == 7 * 1001


@pytest.mark.rule("4.32")
async def test_what_was_checked_before_a_kill_is_signed_for_at_the_next_contact(
    fake: FakeMarket, profile: Profile
) -> None:
    """Killed between the checked charge and its voucher: nobody signed until the next job was
    charged, and providers' pay stayed held.
    """
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
    fake.jobs[run.job_id].hold.set()
    await _until(lambda: fake.jobs[run.job_id].verdict is not None)
    books = Ledger(profile.ledger_path)
    books.settle(run.job_id, fake.charged)
    books.close()
    async with Market(profile) as market:
        await market.attach()
        await _until(lambda: fake.vouched == fake.charged > 0)


async def test_a_copied_profile_is_told_that_its_vouchers_count_no_more(
    fake: FakeMarket, profile: Profile
) -> None:
    """Its providers waited for their pay for ever, and nobody heard of it: a voucher that is
    stale was taken for a sister program's.
    """
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        fake.vouched = Amount(10**9)  # what the other copy has signed
        await (await market.submit(job())).result()
        await _until(lambda: any("this profile copied" in notice for notice in notices))


async def test_of_two_commits_only_one_is_witnessed_by_all_programs_of_a_profile(
    fake: FakeMarket, profile: Profile
) -> None:
    """Each program remembered its own: who shows them different commits chooses, once the beacon
    is known, who audits.
    """
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
        taken = fake.jobs[run.job_id]
        await _until(lambda: taken.witness is not None)
    commit = taken.executions[0].commit.message
    second = seal(
        fake.domain,
        replace(commit, beacon_round=Round(commit.beacon_round + 1)),
        fake.operators[0].sign,
    )
    fake.events = [replace(event, commit=None) for event in fake.events]
    await fake.note(taken, "committed", "as if for the first time", second)
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        await market.attach()
        await _until(lambda: notices)
    assert "another commit" in notices[0] and fake.posts["POST witnesses"] == 1


async def test_a_job_that_nobody_takes_costs_nothing(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(lapse=True)
    async with Market(profile) as market:
        run = await market.submit(job())
        with pytest.raises(NotVerifiedError):
            await run.result()
        assert market.entries()[0].charged == 0
    assert not fake.vouchers


@pytest.mark.rule("5.35")
async def test_unresolved_jobs_are_an_error_with_a_receipt(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(liars=frozenset({0, 1, 2, 3, 4}))
    async with Market(profile) as market:
        run = await market.submit(job())
        with pytest.raises(NotVerifiedError, match="unresolved"):
            await run.result()
    assert verify(profile.receipts / f"{run.job_id.hex()}.json").valid


async def test_a_market_that_is_not_open_says_so(fake: FakeMarket, profile: Profile) -> None:
    with pytest.raises(UsageError, match="async with Market"):
        await Market(profile).offers()
    async with Market(profile) as market:
        run = await market.submit(job())
    with pytest.raises(UsageError, match="is closed"):
        await run.result()
    with pytest.raises(UsageError, match="is not open"):
        await market.submit(job())


@pytest.mark.rule("3.23")
async def test_stop_is_signed_by_the_session(fake: FakeMarket, profile: Profile) -> None:
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
        await run.stop()
        await run.result()
    assert [stop.message.job_id for stop in fake.stops] == [run.job_id]


@pytest.mark.rule("4.32")
async def test_another_program_of_the_profile_settles_what_was_left(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
    next(iter(fake.jobs.values())).hold.set()
    await _until(lambda: next(iter(fake.jobs.values())).verdict is not None)
    assert not fake.vouchers
    async with Market(profile) as market:
        again = await market.run(run.id[:12])
        await again.result()
        await _until(lambda: fake.vouched == fake.charged)


async def test_sessions_are_shared_and_nonces_grow(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        for run in [await market.submit(job()) for _ in range(4)]:
            await run.result()
    orders = [item.submission for item in fake.jobs.values()]
    assert len({item.session.sig for item in orders}) == 1
    nonces = [item.order.message.nonce for item in orders]
    assert nonces == sorted(set(nonces))
    session = orders[0].session.message
    assert session.up_to >= sum(item.order.message.budget for item in orders)


async def test_another_coordinator_behind_the_same_url_is_noticed(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile):
        pass
    from support.markets.fake_market import key

    fake.statement = key("somebody else")
    with pytest.raises(EvidenceError, match="statement_key"):
        async with Market(profile):
            pass


async def test_budget_must_cover_the_worst_case(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        with pytest.raises(UsageError, match="budget"):
            await market.plan(job(budget="0.001"))
        plan = await market.plan(job())
        await market.submit(job())
    order = next(iter(fake.jobs.values())).submission.order.message
    assert (
        order.budget
        == plan.budget
        == settlement.worst_charge(
            order, fake.jobs[next(iter(fake.jobs))].ack.message.rule, 60, 500
        )
    )  # type: ignore[arg-type]


async def test_map_runs_one_job_for_each_set(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        runs = await market.map(job(env={"SEED": "0"}), [{"SEED": str(i)} for i in range(4)])
        await asyncio.gather(*(run.result() for run in runs))
    seeds = [fake.jobs[run.job_id].submission.spec.env[0].value for run in runs]
    assert seeds == ["0", "1", "2", "3"]


async def test_an_absent_coordinator_is_unavailable(tmp_path: Path) -> None:
    profile = create_profile(tmp_path / "client", "http://127.0.0.1:9", "pass", "devnet")
    with pytest.raises(UnavailableError):
        async with Market(profile):
            pass


async def test_the_blocking_twin(fake: FakeMarket, profile: Profile) -> None:
    from quorate.sync import Market as SyncMarket

    def work() -> tuple[str, list[str], bytes]:
        with SyncMarket(profile) as market:
            run = market.submit(job())
            result = run.result()
            return (
                (result.output / "result.txt").read_text(),
                [event.name for event in run.events()],
                b"".join(run.logs()),
            )

    text, names, logs = await asyncio.to_thread(work)
    assert text.startswith("python") and names[-1] == "verdict" and logs == b"hello from the job\n"


async def _until(condition, seconds: float = 5.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
