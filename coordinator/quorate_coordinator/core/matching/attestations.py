"""Which attestations this coordinator believes.

The shell fetches the documents that offers name and checks draw, proofs and signatures. The core
decides whether the keys are those of the verifiers, and whether the records are this provider's,
new and live. So a replay believes the same.
"""

from collections.abc import Iterable

from quorate_attestation import records
from quorate_attestation.catalogue import CPU
from quorate_coordinator.core.model.entities import Attestation, Provider
from quorate_coordinator.core.model.events import AttestationReceived, CheckedGpu
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.offer import SLOTS_MAX
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32
from quorate_protocol.values import replace

MIG_PREFIX = "MIG-"


def on_attestation(context: StepContext, event: AttestationReceived) -> None:
    """In place of older records about the same GPUs. Raises Refused."""
    provider = context.state.providers.get(event.provider)
    if provider is None or provider.offer is None:
        raise Refused(Code.NO_OFFER, f"provider 0x{event.provider.hex()} has no offer here")
    if any(gpu.uuid.startswith(MIG_PREFIX) for gpu in event.gpus):
        raise Refused(Code.UNSUPPORTED, "attestation: MIG partitions have no level yet")
    found = tuple(_attested(context, event, gpu, provider) for gpu in event.gpus)
    first = found[0]
    if any((item.model, item.beacon_round) != (first.model, first.beacon_round) for item in found):
        raise Refused(Code.STALE, "attestation: its GPUs are of different models or rounds")
    gpus = tuple(item.gpu for item in found)
    known = context.state.attestations.get(provider.owner) or ()
    _check_newer(known, event.record, gpus, first.beacon_round)
    rivals = {
        owner
        for gpu in gpus
        if (owner := context.state.gpu_owners.get(_named(gpu, first.model)))
        not in (None, provider.owner)
        and first.model != CPU.id()  # an offer may name any peer key, so a CPU is nobody's rival
        and _has_live(context, owner, gpu, first.model)
    }
    for owner in rivals:
        _dispute(context, owner, gpus, first.model)
    believed = Attestation(
        record=event.record,
        model=first.model,
        gpus=gpus,
        vram_bytes=min(item.vram_bytes for item in found),
        peer_key=provider.offer.peer_key,
        beacon_round=first.beacon_round,
        expires=min(item.expires for item in found),
        is_disputed=bool(rivals),
    )
    _keep(context, provider.owner, known, believed)


def _attested(
    context: StepContext, event: AttestationReceived, gpu: CheckedGpu, provider: Provider
) -> records.Attested:
    assert provider.offer is not None, "the caller has looked"
    messages = [envelope.message for envelope in gpu.records]
    for record, key in zip(messages, gpu.keys, strict=True):
        records.check_times(record, context.at, context.rules.limits.attestation_ttl)
        _check_key(context, event, record, key)
    if event.coordinator not in {record.verifier for record in messages}:
        raise Refused(Code.UNKNOWN, "attestation: the coordinator's record is missing")
    return records.attested(messages, provider.owner, provider.offer.peer_key, gpu.uuid)


def _check_key(
    context: StepContext, event: AttestationReceived, record: AttestationRecord, key: Address
) -> None:
    rules, account = context.rules, record.verifier
    if account == rules.coordinator == event.coordinator:
        is_right = key == rules.statement_key
    elif account == event.coordinator:
        is_right = key == event.coordinator_key
    else:
        verifier = context.state.providers.get(account)
        is_right = verifier is not None and verifier.has_key(key, record.issued)
    if not is_right:
        raise Refused(
            Code.WRONG_SIGNER,
            f"attestation: 0x{key.hex()} was not the key of the verifier 0x{account.hex()}",
        )


def _check_newer(
    known: Iterable[Attestation], record: Hash32, gpus: Iterable[Hash32], beacon_round: int
) -> None:
    for item in known:
        if item.record == record:
            raise Refused(Code.REPLAYED, "attestation: this document is known already")
        if item.beacon_round >= beacon_round and not set(gpus).isdisjoint(item.gpus):
            raise Refused(
                Code.STALE, f"attestation: round {item.beacon_round} is known of one of these GPUs"
            )


def _named(gpu: Hash32, model: Hash32) -> Hash32:
    """As records name it. A provider with a GPU of another model cannot dispute it."""
    return hash_tuple("attested-gpu", gpu, model)


def _has_live(context: StepContext, owner: Address | None, gpu: Hash32, model: Hash32) -> bool:
    known = context.state.attestations.get(owner) if owner is not None else None
    return any(
        gpu in item.gpus and item.model == model and item.expires > context.at
        for item in known or ()
    )


def _dispute(
    context: StepContext, owner: Address | None, gpus: tuple[Hash32, ...], model: Hash32
) -> None:
    """Records of two providers that name one GPU do not count (PROTOCOL 10.17)."""
    assert owner is not None, "a rival has an account"
    context.state.attestations[owner] = tuple(
        item
        if item.model != model or set(gpus).isdisjoint(item.gpus)
        else replace(item, is_disputed=True)
        for item in context.state.attestations[owner]
    )


def _keep(
    context: StepContext, owner: Address, known: tuple[Attestation, ...], new: Attestation
) -> None:
    state = context.state
    kept = [
        item for item in known if item.expires > context.at and set(item.gpus).isdisjoint(new.gpus)
    ][-(SLOTS_MAX - 1) :]
    for item in known:
        if item not in kept:
            for gpu in item.gpus:
                if state.gpu_owners.get(_named(gpu, item.model)) == owner:
                    del state.gpu_owners[_named(gpu, item.model)]
    for gpu in new.gpus:
        state.gpu_owners[_named(gpu, new.model)] = owner
    state.attestations[owner] = (*kept, new)
