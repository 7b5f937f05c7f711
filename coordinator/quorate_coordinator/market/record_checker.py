"""Checks the attestation documents that offers name, before the core believes a level.

It fetches document and proofs from the addresses in the offer, and checks draw, arithmetic, beacon
and signatures again, also when this coordinator was a verifier. So records that came by another
coordinator are believed in the same way.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_attestation import attestation_document, proof_document
from quorate_attestation.attestation_document import DOCUMENT_BYTES_MAX, GpuEvidence
from quorate_attestation.proof_document import PROOF_BYTES_MAX
from quorate_attestation.sessions.recheck import recheck
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.attestation_levels import is_known
from quorate_coordinator.core.model.entities import Provider
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules
from quorate_protocol.codec import cids
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Hash32, Round
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import recover
from quorate_runtime.peers.verifications import Fetch, Verifier

LOOK_SECONDS = 0.5
CHECKS_MAX = 2  # at once: each computes for about a second
TRIES_MAX = 5
RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)

KeyOfCoordinator = Callable[[Address], Awaitable[Address]]
"""Returns the statement key of a bonded coordinator by the chain, or the zero address."""


@dataclass(slots=True)
class _Attempt:
    record: Hash32
    at: float
    tries: int = 0
    is_running: bool = False


class RecordChecker:
    """Follows the offers in the state, and submits the documents that pass."""

    def __init__(
        self,
        state: State,
        rules: Rules,
        verifier: Verifier,
        submit: Callable[[ev.Event], Awaitable[object]],
        fetch: Fetch,
        key_of_coordinator: KeyOfCoordinator,
    ) -> None:
        self._state, self._rules, self._me = state, rules, verifier
        self._submit, self._fetch, self._key_of = submit, fetch, key_of_coordinator
        self._changed = state.providers.follow(_names_other_records)
        self._attempts: dict[tuple[Address, Hash32], _Attempt] = {}

    @property
    def _clock(self) -> Clock:
        return self._me.clock

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow()
                for owner, attempt in self._due():
                    attempt.is_running = True
                    group.create_task(self._try(owner, attempt), name="attestation check")
                await self._clock.sleep(LOOK_SECONDS)

    def _follow(self) -> None:
        now = self._clock.now()
        for owner in self._changed:
            named = _named(self._state.providers.get(owner))
            for key in [key for key in self._attempts if key[0] == owner and key[1] not in named]:
                del self._attempts[key]
            for record in named:
                if not is_known(self._state, owner, record):
                    self._attempts.setdefault((owner, record), _Attempt(record, now))
        self._changed.clear()

    def _due(self) -> list[tuple[Address, _Attempt]]:
        room = CHECKS_MAX - sum(item.is_running for item in self._attempts.values())
        now = self._clock.now()
        due = [
            (owner, item)
            for (owner, _), item in self._attempts.items()
            if not item.is_running and item.tries < TRIES_MAX and item.at <= now
        ]
        return due[: max(0, room)]

    async def _try(self, owner: Address, attempt: _Attempt) -> None:
        name = f"attestation {attempt.record.hex()[:16]} of 0x{owner.hex()}"
        try:
            await self._check(owner, attempt.record)
            attempt.tries = TRIES_MAX
            log.info("%s is believed", name)
        except Refused as refused:
            # Not re-raised: the slot stays at level 0, and the document is not looked at again.
            attempt.tries = TRIES_MAX
            log.info("%s is not believed: %s", name, refused)
        except Unavailable as error:
            # Not re-raised: the provider's gateway or the chain may answer later.
            attempt.tries += 1
            attempt.at = self._clock.now() + RETRY_SECONDS * attempt.tries
            log.info("%s is not checked yet: %s", name, error)
        finally:
            attempt.is_running = False

    async def _check(self, owner: Address, record: Hash32) -> None:
        provider = self._state.providers.get(owner)
        if provider is None or provider.offer is None:
            raise Refused(Code.NO_OFFER, "the offer was withdrawn")
        gateways = provider.offer.addresses
        data = await self._fetch(cids.cid_text(cids.RAW, record), gateways, DOCUMENT_BYTES_MAX)
        document = attestation_document.decode(data)
        coordinators, found = set(), []
        for gpu in document.gpus:
            proof = await self._fetch(gpu.proof_cid, gateways, PROOF_BYTES_MAX)
            checked, coordinator = await asyncio.to_thread(self._recheck, gpu, proof)
            coordinators.add(coordinator)
            found.append(checked)
        (coordinator,) = coordinators  # all records are of one challenge
        key = await self._key_of(coordinator) if coordinator != self._me.account else ZERO_ADDRESS
        await self._submit(ev.AttestationReceived(owner, record, coordinator, key, tuple(found)))

    def _recheck(self, gpu: GpuEvidence, proof: bytes) -> tuple[ev.CheckedGpu, Address]:
        """Blocks for about a second. Raises Refused with the first check that fails."""
        domain: Domain = self._me.domain
        report = recheck(
            proof,
            gpu.records,
            domain,
            self._rules.beacon_key,
            os.urandom(32),
            recover,
            _verify_round,
            standard=self._me.standard,
            ttl=self._rules.limits.attestation_ttl,
        )
        if not report.valid:
            first = report.failures[0]
            raise Refused(Code.DOES_NOT_OPEN, f"{first.name}: {first.detail}")
        keys = tuple(signer(domain, envelope, recover) for envelope in gpu.records)
        challenge = proof_document.decode(proof).header.challenge
        return ev.CheckedGpu(gpu.uuid, gpu.records, keys), challenge.verifiers[0]


def _named(provider: Provider | None) -> frozenset[Hash32]:
    offer = provider.offer if provider is not None else None
    if offer is None:
        return frozenset()
    return frozenset(slot.record for slot in offer.slots if slot.attestation_level > 0)


def _names_other_records(before: Provider, after: Provider) -> bool:
    return before.offer is not after.offer and _named(before) != _named(after)


def _verify_round(key: bytes, number: int, signature: bytes) -> bool:
    return bls.verify_round(key, Round(number), signature)
