"""Checks the attestation of offers' slots again, from the documents that the offers name.

It believes no coordinator: it fetches document and proofs from the addresses in the offer and
checks beacon, draw, arithmetic and signatures. Elapsed time and rates stay the verifiers' word.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate.trust.offer_verification import ChainKeys
from quorate.trust.receipt_verification import check_round
from quorate_attestation import attestation_document, proof_document, records, verifier_draw
from quorate_attestation.attestation_document import DOCUMENT_BYTES_MAX, GpuEvidence
from quorate_attestation.catalogue import CPU
from quorate_attestation.proof_document import PROOF_BYTES_MAX
from quorate_attestation.records import Attested
from quorate_attestation.sessions.recheck import recheck
from quorate_protocol.codec import cids
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.offer import Offer, SlotOffer, gpus_needed
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.keys.crypto import recover

MIG_PREFIX = "MIG-"

Fetch = Callable[[str, tuple[str, ...], int], Awaitable[bytes]]
"""CID, gateways and the most bytes -> the document."""


@dataclass(frozen=True, slots=True)
class CheckedSlot:
    """What this program found about one slot. `level` is what the offer claims.

    `problem` says why it is not verified; "" if it is, or if the level is 0. `gpus` is what the
    verifiers say of each GPU; `elapsed_ms` is the time of all stages, by the slowest verifier.
    """

    level: int
    is_verified: bool = False
    problem: str = ""
    gpus: tuple[Attested, ...] = ()
    elapsed_ms: int = 0


@dataclass(frozen=True, slots=True)
class AttestationCheck:
    """How to check: whose deployment, when, where documents come from, and whose keys count.

    `keys` is the chain, or the account and statement key of the one coordinator that the client
    knows. Then drawn verifiers' keys are those of that coordinator's list.
    """

    domain: Domain
    limits: Limits
    beacon_key: bytes
    now: UnixSeconds
    fetch: Fetch
    keys: ChainKeys | tuple[Address, Address]

    async def check(self, offer: Offer) -> tuple[CheckedSlot, ...]:
        """Returns one result for each slot of an offer."""
        return tuple([await self._slot(offer, slot) for slot in offer.slots])

    async def _slot(self, offer: Offer, slot: SlotOffer) -> CheckedSlot:
        if not slot.attestation_level:
            return CheckedSlot(0)
        try:
            gpus, elapsed_ms = await self._verify(offer, slot)
        except (Refused, Unavailable) as error:
            # Not re-raised: it is the result.
            detail = error.detail if isinstance(error, Refused) and error.detail else str(error)
            return CheckedSlot(slot.attestation_level, problem=detail)
        return CheckedSlot(slot.attestation_level, True, "", gpus, elapsed_ms)

    async def _verify(self, offer: Offer, slot: SlotOffer) -> tuple[tuple[Attested, ...], int]:
        cid = cids.cid_text(cids.RAW, slot.record)
        data = await self.fetch(cid, offer.addresses, DOCUMENT_BYTES_MAX)
        document = attestation_document.decode(data)
        found, elapsed_ms = [], 0
        for gpu in document.gpus:
            proof = await self.fetch(gpu.proof_cid, offer.addresses, PROOF_BYTES_MAX)
            found.append(await self._gpu(offer, gpu, proof))
            times = [envelope.message.elapsed_ms for envelope in gpu.records]
            elapsed_ms = max(elapsed_ms, *times)
        _check_covers(offer, slot, document.gpus, found)
        return tuple(found), elapsed_ms

    async def _gpu(self, offer: Offer, gpu: GpuEvidence, proof: bytes) -> Attested:
        ttl = self.limits.attestation_ttl
        for envelope in gpu.records:
            records.check_times(envelope.message, self.now, ttl)
        keys = await self._keys(gpu, proof)
        report = await asyncio.to_thread(
            recheck,
            proof,
            gpu.records,
            self.domain,
            self.beacon_key,
            os.urandom(32),
            recover,
            check_round,
            lambda account, key: (account, key) in keys,
            ttl=ttl,
        )
        if not report.valid:
            first = report.failures[0]
            raise Refused(Code.DOES_NOT_OPEN, f"{first.name}: {first.detail}")
        messages = [envelope.message for envelope in gpu.records]
        return records.attested(messages, offer.provider, offer.peer_key, gpu.uuid)

    async def _keys(self, gpu: GpuEvidence, proof: bytes) -> frozenset[tuple[Address, Address]]:
        challenge = proof_document.decode(proof).header.challenge
        if isinstance(self.keys, tuple):
            if challenge.verifiers[0] != self.keys[0]:
                raise Refused(
                    Code.WRONG_SIGNER,
                    "another coordinator challenged this provider: only the chain knows its key "
                    "(--on-chain)",
                )
            drawn = verifier_draw.check(challenge)
            return frozenset({self.keys, *((slot.owner, slot.operator_key) for slot in drawn)})
        if not await self.keys.is_coordinator(challenge.verifiers[0]):
            raise Refused(Code.WRONG_SIGNER, "no bonded coordinator challenged this provider")
        pairs = set()
        for envelope in gpu.records:
            account = envelope.message.verifier
            key = signer(self.domain, envelope, recover)
            if await self.keys.is_key_at(account, key, envelope.message.issued):
                pairs.add((account, key))
        return frozenset(pairs)


def _check_covers(
    offer: Offer, slot: SlotOffer, evidence: tuple[GpuEvidence, ...], found: list[Attested]
) -> None:
    """Refuses records that do not cover all GPUs of the slot."""
    model = hash_tuple("gpu-model", slot.gpu or CPU.name)
    gpus = {
        item.gpu
        for gpu, item in zip(evidence, found, strict=True)
        if item.model == model and not gpu.uuid.startswith(MIG_PREFIX)
    }
    needed = gpus_needed(offer.slots, slot.gpu)
    if len(gpus) < needed:
        raise Refused(
            Code.UNKNOWN,
            f"records cover {len(gpus)} GPUs of the slot's model, and the offer has {needed}",
        )
