"""Tests what a run shows to those that may read a part of it, over real HTTP.

`tests/adversary/test_privacy.py` asks every route as every reader.
"""

from pathlib import Path

import aiohttp
import pytest

from fuzz.core_world import DOMAIN
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.accusations import UnverifiableImage
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess, Share
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.signed import Stop
from quorate_protocol.messages.views import PlanRequest, PlanView
from quorate_protocol.refusals import Code
from quorate_protocol.units import Label, UnixSeconds
from support.markets.readable_market import (
    ARCHIVED,
    ASSIGNED,
    CLIENT,
    EXECUTOR,
    FINAL,
    IN_COURT,
    JUROR,
    NOBODY,
    OTHER_CLIENT,
    READERS,
    RUNNING,
    STAGES,
    ArchivingWorld,
    readable_market,
)
from support.refusals import refuses

OVER = (FINAL, IN_COURT, ARCHIVED)


@pytest.mark.rule("5.95")
@pytest.mark.parametrize(
    ("stage", "expects"), [("final", (503, "unavailable")), ("archived", (404, "unknown"))]
)
async def test_a_missing_receipt_is_reported_as_not_yet_stored_or_as_expired(
    stage: str, expects: tuple[int, str], tmp_path: Path
) -> None:
    async with (
        readable_market(stage, tmp_path, has_receipts=False) as found,
        aiohttp.ClientSession() as session,
        session.get(
            f"{found.url}/v1/receipts/0x{found.job.id.hex()}", headers=found.tokens[CLIENT]
        ) as response,
    ):
        assert (response.status, (await response.json())["code"]) == expects


@pytest.mark.rule("4.71", "5.116")
async def test_a_plan_refuses_what_its_order_refuses_over_its_image(tmp_path: Path) -> None:
    async with readable_market(FINAL, tmp_path) as found, aiohttp.ClientSession() as session:
        order, spec = found.job.submission.order.message, found.job.submission.spec
        until = UnixSeconds(found.world.at + 3600)
        image = UnverifiableImage(image_digest(spec.image), until)
        found.world.core.state.unverifiable[order.client] = (image,)

        async def planned(reader: str, accepts: bool) -> PlanView:
            tier, most = order.verify_tier, order.max_price_per_hour
            body = canonical.encode(PlanRequest(spec, most, tier, accepts))
            url, headers = f"{found.url}/v1/plan", found.tokens[reader]
            async with session.post(url, data=body, headers=headers) as response:
                raw = await response.read()
            return canonical.from_json(PlanView, canonical.parse(raw, len(raw)))

        refused, single = await planned(CLIENT, False), await planned(CLIENT, True)
        assert (refused.refusal, refused.executions_priced) == (Code.UNSUPPORTED.value, 1)
        assert refused.nearest.startswith("this image gave one provider two results; for 1 h")
        assert (single.rule, single.refusal, single.nearest) == (Label.UNVERIFIED, "", "")
        for reader in (NOBODY, OTHER_CLIENT):
            other = await planned(reader, False)
            assert (other.rule, other.refusal) == (Label.QUORUM_2, ""), "others may use the image"


@pytest.mark.rule("I8", "5.19", "5.23")
@pytest.mark.parametrize("stage", STAGES)
async def test_what_a_run_shows_to_whom(stage: str, tmp_path: Path) -> None:
    is_decided, is_final = stage not in (ASSIGNED, RUNNING), stage in OVER
    readers = [CLIENT, *([EXECUTOR] if is_final else []), *([JUROR] if stage == IN_COURT else [])]
    async with readable_market(stage, tmp_path) as found, aiohttp.ClientSession() as session:
        for reader in readers:
            async with session.get(
                f"{found.url}/v1/runs/0x{found.job.id.hex()}", headers=found.tokens[reader]
            ) as response:
                view, text = await response.json(), await response.text()
            is_client = reader == CLIENT
            assert (view["output"] is not None) is (is_client and is_decided), reader
            assert (view["receiptCid"] is not None) is is_decided
            digests = [item["outputDigest"] for item in view["executions"]]
            assert any(digest is not None for digest in digests) is is_decided
            assert "salt" not in text or is_client, "what opens the ciphertext is the client's"
            assert bool(view["name"]) is is_client and int(view["budget"]) > 0, reader
            if not is_decided:
                blinded = [
                    int(item["provider"], 16) == 0 and item["role"] == "unknown"
                    for item in view["executions"]
                ]
                assert all(blinded), "nobody knows who runs it, and which of them audits"
        for reader in READERS[1:]:
            async with session.get(
                f"{found.url}/v1/runs", headers=found.tokens[reader]
            ) as response:
                ids = [view["jobId"] for view in (await response.json())["runs"]]
            assert ("0x" + found.job.id.hex() in ids) is (reader == CLIENT)


@pytest.mark.rule("4.60", "4.63")
@pytest.mark.parametrize("public", [False, True])
async def test_a_run_that_was_never_decided_is_its_clients(public: bool) -> None:
    world = ArchivingWorld(DEVNET, 6)
    assert world.order(0, 1, {}, {"public": public})
    job_id, client = world.jobs()[0].id, world.clients[0].address
    state, history = world.core.state, RunReader(world.core.state, world.files)
    access = RunAccess(state, history, Outputs(state, world.files), ())
    assert world.send(
        ev.StopReceived(
            seal(DOMAIN, Stop(job_id, UnixSeconds(world.at)), world.sessions[0].sign),
            world.sessions[0].address,
        )
    )
    for is_archived in (False, True):
        world.is_archive_there = is_archived
        for _ in range(400 * is_archived):
            if job_id not in world.core.state.jobs:
                break
            world.beat(2)
        assert (job_id not in world.core.state.jobs) is is_archived
        mine = access.view(job_id, client)
        assert (mine.phase, mine.is_final) == ("ended", False) and mine.name and mine.budget
        if public:
            assert access.view(job_id, None) == mine
            continue
        for reader, code in ((None, Code.BAD_SIGNATURE), (world.clients[1].address, Code.UNKNOWN)):
            with refuses(code):
                access.share(job_id, reader)
        assert access.share(job_id, client) is Share.ALL
