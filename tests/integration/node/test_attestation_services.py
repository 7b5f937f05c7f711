"""Provider, coordinator and drawn verifiers hold a challenge by messages."""

import logging
from pathlib import Path

import pytest

from quorate_attestation import session_messages
from quorate_attestation.session_messages import (
    AttestationAsked,
    ChallengeSent,
    NonceSent,
    RefusalSent,
)
from quorate_node.market.published_records import PublishedRecords
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Round, Small
from quorate_protocol.values import replace
from support.attestation.challenges import challenge, nonce
from support.attestation.cheats import ForgetfulEngine, SkippingEngine
from support.attestation.wired_services import Wired
from support.markets.scripted_market import COORDINATOR


class ForgingRecords(PublishedRecords):
    """Keeps the right proof and one with a wrong byte, and names the wrong one."""

    async def keep_proof(self, beacon_round: Round, data: bytes) -> str:
        await super().keep_proof(beacon_round, data)
        return await super().keep_proof(beacon_round, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.rule("10.3", "10.13", "10.20")
async def test_a_challenged_provider_gets_level_1_by_three_records(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        await wired.until(lambda: wired.level() == 1)
        (known,) = wired.market.core.state.attestations[wired.first.party.owner]
        (document,) = wired.first.records.newest.documents
        assert known.record == document.record and document.model == "cpu"


@pytest.mark.rule("10.3")
async def test_drawn_providers_that_are_away_are_skipped(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        for item in list(wired.providers.values())[1:4]:
            item.is_away = True
        await wired.until(lambda: wired.level() == 1)


@pytest.mark.rule("10.8", "10.9", "10.14")
@pytest.mark.parametrize("engine", [lambda: SkippingEngine(0.4), lambda: ForgetfulEngine(0.5)])
async def test_a_provider_that_cheats_gets_no_record_and_its_owner_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: object
) -> None:
    caplog.set_level(logging.WARNING)
    wired = Wired(tmp_path)
    wired.first.engine = engine  # type: ignore[assignment]
    async with wired:
        await wired.until(lambda: "no attestation by beacon round" in caplog.text)
        assert wired.level() == 0 and not wired.first.records.newest.documents
    assert "does-not-open" in caplog.text


@pytest.mark.rule("10.22")
async def test_a_provider_that_runs_a_job_refuses_to_be_challenged(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        wired.first.is_idle = False
        await wired.until(lambda: wired.clock.now() > wired.began + 2)
        assert wired.level() == 0 and not wired.first.records.newest.documents
        wired.first.is_idle = True
        await wired.until(lambda: wired.level() == 1)


@pytest.mark.rule("10.20")
async def test_a_document_whose_proof_is_another_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    wired = Wired(tmp_path, first_records=ForgingRecords)
    async with wired:
        await wired.until(lambda: "no attestation" in caplog.text)
    assert wired.level() == 0


class LostRecords(PublishedRecords):
    """Keeps no proof, and names one that nobody has."""

    async def keep_proof(self, beacon_round: Round, data: bytes) -> str:
        return document_cid(data)


async def test_an_owner_is_told_that_nobody_reaches_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with Wired(tmp_path, first_records=LostRecords) as wired:
        await wired.until(lambda: "no attestation by beacon round" in caplog.text)
    assert "let others reach the gateway" in caplog.text


@pytest.mark.rule("10.23")
async def test_messages_of_the_wrong_sender_are_refused(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        provider = wired.first
        opened = challenge()
        strangers = [item for item in wired.providers.values() if item is not provider]
        sent = session_messages.encode(ChallengeSent(opened, ()))
        for item in (provider, strangers[0]):
            with pytest.raises(Refused):
                item.service.take(COORDINATOR.address, sent)
        told = NonceSent(opened.digest(), Small(1), Small(0), nonce(1))
        with pytest.raises(Refused) as refused:
            await wired.coordinating.take(
                "0x" + strangers[0].party.owner.hex(), session_messages.encode(told)
            )
        assert refused.value.code is Code.UNKNOWN
        asked = AttestationAsked(nonce(5), provider.claims())
        with pytest.raises(Refused) as refused:
            await wired.coordinating.take(
                "0x" + provider.party.owner.hex(), session_messages.encode(asked)
            )
        assert refused.value.code in (Code.NOT_YOURS, Code.BUSY)
        told_off = RefusalSent(opened.digest(), Small(0), Code.BAD_AMOUNT, "no")
        with pytest.raises(Refused):
            provider.service.take(COORDINATOR.address, session_messages.encode(told_off))


async def test_published_records_survive_a_restart(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        await wired.until(lambda: wired.level() == 1)
        newest = wired.first.records.newest
        again = replace(newest)
        assert (
            type(wired.first.records)(wired.store, tmp_path / "records-0.json", wired.clock).newest
            == again
        )
        offer = wired.market.core.state.providers[wired.first.party.owner].offer
        assert offer is not None and offer.slots[0].record == newest.documents[0].record
        wired.clock.ahead = 10_000
        assert wired.first.records.attested(offer.slots) == offer.slots
        bare = tuple(replace(slot, attestation_level=Small(0)) for slot in offer.slots)
        assert wired.first.records.attested(bare) == bare, "expired records are not named again"
