"""The client against a fake coordinator: what it accepts, signs and refuses."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quorate.base.errors import (
    EvidenceError,
    NotVerifiedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from quorate.client.base.profile import Profile, create_profile
from quorate.client.market import Market
from quorate.trust.receipt_verification import verify
from quorate_protocol.refusals import Code
from support.markets.client_jobs import job
from support.markets.fake_market import Cheat, FakeMarket


async def test_a_job_gives_a_checked_result(fake: FakeMarket, profile: Profile) -> None:
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


async def test_a_client_that_names_a_pool_sees_its_owners_and_gets_no_other(
    fake: FakeMarket, profile: Profile
) -> None:
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        (row,) = await market.pools()
        plan = await market.plan(job(pool=row.name))
        assert plan.pool == row and row.owners == tuple(fake.owners)
        assert (await (await market.submit(job(pool=row.name))).result()).is_success
        assert any(all(owner.hex() in notice for owner in fake.owners) for notice in notices), (
            notices
        )
        with pytest.raises(EvidenceError, match="pool is not the ordered one"):
            await market.submit(job(pool="H100 SXM"))
    assert any("no provider offers it" in notice for notice in notices)


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
    fake.cheat = Cheat(refuse_order=Code.INSUFFICIENT_FUNDS)
    async with Market(profile) as market:
        with pytest.raises(RefusedError) as refused:
            await market.submit(job())
        assert refused.value.code == "insufficient-funds" and not market.entries()


async def test_an_answer_lost_on_the_way_does_not_order_twice(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(drop_first_order=True)
    async with Market(profile) as market:
        run = await market.submit(job())
        await run.result()
    assert len(fake.jobs) == 1 and fake.posts["POST orders"] == 2


async def test_waiting_survives_a_restart_of_the_coordinator(
    fake: FakeMarket, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.client.base.coordinator_api.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("quorate.client.run.RECONNECT_SECONDS", (0.01,))
    fake.cheat = Cheat(away=30)  # ten requests of three tries
    told: list[str] = []
    async with Market(profile, notice=told.append) as market:
        assert (await (await market.submit(job())).result()).is_success
    assert fake.cheat.away == 0 and any("continues" in sentence for sentence in told)


async def test_a_waiting_client_is_told_once_what_it_waits_for(
    fake: FakeMarket, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once `quorate get` of a run stopped during its image fetch waited over a minute without a
    word.
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
    assert f"waiting for run {run.id[:14]}: running" in sentence
    assert f"until {expiry.astimezone():%Y-%m-%d %H:%M}, and a program" in sentence
    assert "runs for at most 1m" in sentence


async def test_a_refused_retry_does_not_forget_an_accepted_order(
    fake: FakeMarket, profile: Profile
) -> None:
    """Once the first answer was lost and the retry met a busy coordinator: the job ran, but the
    profile forgot it.
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
        assert market.debt().charged == fake.charged <= fake.vouched


async def test_an_old_run_is_found(fake: FakeMarket, profile: Profile) -> None:
    """Once only the newest thousand runs were searched, but a map has up to ten thousand."""
    async with Market(profile) as market:
        run = await market.submit(job(name="first"))
        with closing(sqlite3.connect(profile.ledger_path)) as books:
            books.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001) "
                "INSERT INTO orders SELECT"
                " randomblob(32), coordinator, nonce, 'other', \"order\", spec, session, "
                "submitted_at + 1, '7', outputs, ack, reserved, funded_until, "
                "is_returned, metered"
                " FROM orders, n"
            )
            books.commit()
        for name in (run.job_id, run.id, run.id[:14], "first"):
            assert (await market.run(name)).job_id == run.job_id
        assert market.debt().charged == 7 * 1001


async def test_a_job_without_providers_costs_nothing(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(lapse=True)
    async with Market(profile) as market:
        run = await market.submit(job())
        with pytest.raises(NotVerifiedError):
            await run.result()
        assert market.entries()[0].charged == 0 and market.debt().promised == 0


async def test_a_market_that_is_not_open_raises_a_usage_error(
    fake: FakeMarket, profile: Profile
) -> None:
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


async def test_the_blocking_api_runs_a_job(fake: FakeMarket, profile: Profile) -> None:
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
