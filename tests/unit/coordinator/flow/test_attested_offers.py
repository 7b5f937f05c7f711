"""The core believes an attestation level only by checked records, and matches by it."""

from collections.abc import Sequence
from typing import cast

import pytest

from quorate_attestation.challenge import cpu_uuid
from quorate_attestation.seeds import gpu_hash
from quorate_coordinator.core import views
from quorate_coordinator.core.model import events as ev
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.messages.views import PlanView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    ByteCount,
    Hash32,
    Milliseconds,
    PerSecond,
    Ppm,
    Round,
    Small,
    UnixSeconds,
)
from quorate_protocol.units import Sequence as Number
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_market import COORDINATOR, DOMAIN, STATEMENT, Market, Party
from support.messages import a_spec
from support.refusals import refuses

CPU_MODEL = hash_tuple("gpu-model", "cpu")


class Attested(Market):
    """Four providers. The first is challenged; the coordinator and two others verify."""

    def __init__(self) -> None:
        super().__init__(*[Party(number) for number in range(4)])
        self.everybody = list(self.parties.values())
        self.first = self.everybody[0]

    def peer_key(self, owner: Address) -> Hash32:
        offer = self.core.state.providers[owner].offer
        assert offer is not None
        return offer.peer_key

    def cpu(self) -> str:
        """What names the first provider's CPU."""
        return cpu_uuid(self.peer_key(self.first.owner))

    def record(self, verifier: Address, **changes: object) -> AttestationRecord:
        """A record about the first provider's CPU."""
        record = AttestationRecord(
            verifier=verifier,
            provider=self.first.owner,
            peer_key=self.peer_key(self.first.owner),
            gpu=gpu_hash(self.cpu()),
            model=CPU_MODEL,
            beacon_round=Round(400),
            verifiers=Small(3),
            challenge=hash_tuple("challenge"),
            gpus=Small(1),
            int8_operations=PerSecond(1),
            memory_bytes=PerSecond(1),
            vram_bytes=ByteCount(1 << 25),
            ratio=Ppm(0),
            elapsed_ms=Milliseconds(900),
            proof=hash_tuple("proof"),
            issued=UnixSeconds(self.at),
            expires=UnixSeconds(self.at + DEVNET.attestation_ttl),
        )
        return replace(record, **changes)  # type: ignore[arg-type]

    def event(
        self,
        document: str = "document",
        keys: Sequence[KeySigner] = (),
        uuid: str = "",
        sent_by: Address | None = None,
        **changes: object,
    ) -> ev.AttestationReceived:
        """The event of a document with three records."""
        verifiers = [COORDINATOR.address, self.everybody[1].owner, self.everybody[2].owner]
        named = {"gpu": gpu_hash(uuid)} if uuid else {}
        changes = {"provider": self.first.owner, **named, **changes}
        signers = keys or (STATEMENT, self.everybody[1].key, self.everybody[2].key)
        sealed = tuple(
            seal(DOMAIN, self.record(verifier, **changes), key.sign)
            for verifier, key in zip(verifiers, signers, strict=True)
        )
        found = ev.CheckedGpu(uuid or self.cpu(), sealed, tuple(key.address for key in signers))
        return ev.AttestationReceived(
            sent_by or cast("Address", changes["provider"]),
            hash_tuple(document),
            COORDINATOR.address,
            STATEMENT.address,
            (found,),
        )

    def claim(self, party: Party, document: str = "document", seq: int = 2) -> None:
        """The provider's offer names a document and level 1."""
        offer = self.core.state.providers[party.owner].offer
        assert offer is not None
        slot = replace(offer.slots[0], attestation_level=Small(1), record=hash_tuple(document))
        changed = replace(offer, seq=Number(seq), slots=(slot,))
        self.send_offer(party, changed)

    def levels(self) -> list[int]:
        rows = views.offer_views(self.core.state, UnixSeconds(self.at), 10)
        return [row.attestation_levels[0] for row in rows]

    def plan_attested(self) -> PlanView:
        """What a job that asks for level 1 would find."""
        spec = replace(a_spec("attested"), attestation_level=Small(1))
        return self.plan(spec, 200_000, accept_unverified=True)


@pytest.mark.rule("10.13", "10.20")
def test_a_claimed_level_counts_once_its_records_are_checked() -> None:
    market = Attested()
    market.claim(market.first)
    assert market.levels() == [0, 0, 0, 0], "a claim alone is not believed"
    market.send(market.event())
    assert market.levels() == [1, 0, 0, 0]
    market.core.restore(market.core.snapshot())
    assert market.levels() == [1, 0, 0, 0]
    market.at += DEVNET.attestation_ttl
    assert market.levels() == [0, 0, 0, 0], "records expire"


@pytest.mark.rule("10.21")
def test_a_job_that_asks_for_level_1_meets_only_attested_slots() -> None:
    market = Attested()
    market.claim(market.first)
    view = market.plan_attested()
    assert view.offers == 0
    assert "none of the 4 run slots that fit is attested at level 1" in view.nearest
    assert "leave out attestation" in view.nearest
    market.send(market.event())
    assert market.plan_attested().offers == 1


@pytest.mark.rule("10.3", "10.20")
def test_records_of_another_provider_key_gpu_or_signer_are_not_believed() -> None:
    market = Attested()
    second = market.everybody[1]
    stranger = KeySigner(b"\x77" * 32)
    market.claim(market.first)
    cases = [
        (market.event(sent_by=second.owner), Code.NOT_YOURS),
        (market.event(peer_key=hash_tuple("another")), Code.NOT_YOURS),
        (market.event(gpu=gpu_hash("GPU-of-somebody")), Code.NOT_YOURS),
        (market.event(keys=(STATEMENT, second.key, stranger)), Code.WRONG_SIGNER),
        (market.event(keys=(stranger, second.key, market.everybody[2].key)), Code.WRONG_SIGNER),
        (replace(market.event(), coordinator=market.everybody[3].owner), Code.WRONG_SIGNER),
        (market.event(verifiers=Small(2)), Code.UNKNOWN),
        (market.event(expires=UnixSeconds(market.at + 10_000)), Code.EXPIRED),
        (market.event(issued=UnixSeconds(market.at + 100)), Code.TOO_EARLY),
    ]
    for event, code in cases:
        with refuses(code):
            market.send(event)
    assert market.levels() == [0, 0, 0, 0]


@pytest.mark.rule("10.15")
def test_replayed_and_older_records_are_refused() -> None:
    market = Attested()
    market.claim(market.first)
    market.send(market.event())
    with refuses(Code.REPLAYED):
        market.send(market.event())
    for number in (399, 400):
        with refuses(Code.STALE):
            market.send(market.event("older", beacon_round=Round(number)))
    market.send(market.event("newer", beacon_round=Round(415)))
    assert [item.beacon_round for item in market.core.state.attestations[market.first.owner]] == [
        415
    ]


@pytest.mark.rule("4.67", "10.1")
def test_measured_slot_comes_before_a_reported_one_of_the_same_price() -> None:
    for nonce in range(1, 6):
        market = Attested()
        market.claim(market.first)
        market.send(market.event())
        rows = views.offer_views(market.core.state, UnixSeconds(market.at), 10)
        assert [row.rank_ppm for row in rows] == [(990_000,)] + 3 * [(1_000_000,)]
        job = market.core.state.jobs[market.order(0, nonce)]
        assert market.core.state.leases[job.leases[0]].provider == market.first.owner


def disputes(market: Attested) -> list[bool]:
    known = market.core.state.attestations
    return [item.is_disputed for owner in known for item in known[owner]]


@pytest.mark.rule("10.17")
def test_records_of_two_providers_that_name_one_gpu_do_not_count() -> None:
    h100, other = (hash_tuple("gpu-model", name) for name in ("H100 SXM", "A100 PCIe 40GB"))
    market = Attested()
    rival = market.everybody[3]
    theirs = {"provider": rival.owner, "uuid": "GPU-1"}
    market.send(market.event(uuid="GPU-1", model=h100))
    market.send(market.event("foreign", **theirs, model=other))
    assert disputes(market) == [False, False], "nobody disputes a GPU with one of another model"
    market.send(market.event("rival", **theirs, model=h100, beacon_round=Round(401)))
    assert disputes(market) == [True, True]
    market.send(market.event("again", uuid="GPU-1", model=h100, beacon_round=Round(402)))
    assert disputes(market) == [True, True], "while the rival's record lives"
    market.at += DEVNET.attestation_ttl
    market.send(market.event("later", uuid="GPU-1", model=h100, beacon_round=Round(500)))
    assert disputes(market)[0] is False


@pytest.mark.rule("10.17")
def test_the_cpu_of_another_provider_cannot_be_named() -> None:
    market = Attested()
    market.claim(market.first)
    market.send(market.event())
    rival = market.everybody[3]
    market.claim(rival, "rival")
    named = market.event("rival", uuid="cpu-of-the-first", provider=rival.owner)
    with pytest.raises(Refused, match="named by its provider's peer key"):
        market.send(named)
    # It may say that its peer key is the other's, but then it answers for its own CPU only.
    market.send(market.event("rival", provider=rival.owner, beacon_round=Round(401)))
    assert market.levels() == [1, 0, 0, 1]


@pytest.mark.rule("10.20")
def test_a_slot_has_the_level_only_with_enough_gpus_of_its_model() -> None:
    market = Attested()
    market.claim(market.first)
    market.send(market.event(model=hash_tuple("gpu-model", "H100 SXM")))
    assert market.levels() == [0, 0, 0, 0], "no GPU stands for a CPU"
