"""What the client believes: it refuses false evidence and witnesses only what is in time."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from quorate.base.errors import EvidenceError, NotVerifiedError
from quorate.client.base.profile import Profile
from quorate.client.market import Market
from quorate.trust.receipt_verification import verify
from quorate_protocol.messages.envelope import seal
from quorate_protocol.units import Round
from quorate_protocol.values import replace
from support.http_server import on_loopback
from support.markets.client_jobs import job, until
from support.markets.fake_market import Cheat, FakeMarket


@asynccontextmanager
async def registry(manifest: bytes, said: str) -> AsyncIterator[str]:
    """Returns `host:port` of a registry that has every tag and claims a fixed digest."""

    async def answer(_: web.Request) -> web.Response:
        kind = "application/vnd.oci.image.manifest.v1+json"
        return web.Response(
            body=manifest, content_type=kind, headers={"Docker-Content-Digest": said}
        )

    app = web.Application()
    app.router.add_get("/v2/{path:.+}", answer)
    async with on_loopback(app) as url:
        yield url.removeprefix("http://")


async def test_a_tag_is_resolved_before_the_order(fake: FakeMarket, profile: Profile) -> None:
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


async def test_an_image_with_a_wrong_registry_digest_is_not_ordered(
    fake: FakeMarket, profile: Profile
) -> None:
    async with (
        registry(b'{"schemaVersion":2}', "sha256:" + "0" * 64) as host,
        Market(profile) as market,
    ):
        with pytest.raises(EvidenceError, match="sent a manifest with digest"):
            await market.submit(job(image=f"{host}/team/tool:1.2"))
    assert not fake.jobs


@pytest.mark.rule("3.28", "3.35", "7.1")
@pytest.mark.parametrize(
    ("cheat", "named"),
    [
        (Cheat(crown_liar=True, liars=frozenset({0})), "verdict"),
        (Cheat(foreign_verdict_key=True), "signature:verdict"),
        (Cheat(price=600_000), "price"),
        (Cheat(wrong_class=True), "class"),
        (Cheat(ack_twice=True), "another Ack|witness:ack"),
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
        assert cheat.swap_ciphertext or market.debt().charged == 0
    assert not (profile.outputs.exists() and any(profile.outputs.iterdir()))
    assert len(fake.vouchers) == 1, "nothing is signed beside what the order needed"


async def test_an_answer_about_another_run_is_refused(fake: FakeMarket, profile: Profile) -> None:
    """Once the coordinator could answer with another run of this client, whose checked output
    became the result.
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


async def test_all_programs_of_a_profile_witness_only_one_of_two_commits(
    fake: FakeMarket, profile: Profile
) -> None:
    """Once each program remembered its own. A provider could show them different commits and choose
    its auditors later.
    """
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
        taken = fake.jobs[run.job_id]
        await until(lambda: taken.witness is not None)
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
        await until(lambda: notices)
    assert "another commit" in notices[0] and fake.posts["POST witnesses"] == 1


@pytest.mark.rule("5.35")
async def test_unresolved_jobs_are_an_error_with_a_receipt(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(liars=frozenset({0, 1, 2, 3, 4}))
    async with Market(profile) as market:
        run = await market.submit(job())
        with pytest.raises(NotVerifiedError, match=r"unresolved.* different results") as caught:
            await run.result()
    (found,) = caught.value.differences
    assert found.path == "result.txt" and "differs from byte" in found.sentence
    assert len(list((profile.outputs / f"{run.job_id.hex()}-differs").glob("?/result.txt"))) == 2
    assert verify(profile.receipts / f"{run.job_id.hex()}.json").valid


async def test_another_coordinator_at_the_same_url_is_detected(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile):
        pass
    from support.markets.fake_market import key

    fake.statement = key("somebody else")
    with pytest.raises(EvidenceError, match="statement_key"):
        async with Market(profile):
            pass
