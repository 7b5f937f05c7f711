"""Which attestation level a slot of an offer has, by the records that this coordinator believes."""

from quorate_attestation.catalogue import CPU
from quorate_coordinator.core.model.entities import Provider
from quorate_coordinator.core.model.tables import StateTables
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.offer import SlotOffer, gpus_needed
from quorate_protocol.units import Address, Hash32, Small, UnixSeconds

LEVEL_CHALLENGED = Small(1)
COVERED_PERCENT = 84  # of the memory that a slot names; pages leave room for matrices


def level_of(state: StateTables, provider: Provider, slot: SlotOffer, at: UnixSeconds) -> Small:
    """The level of a slot that this coordinator believes until after `at`.

    The slot must claim it, and live records of the provider must name enough GPUs of its model
    behind the offer's peer key. The CPU's record covers all CPU slots.
    """
    if slot.attestation_level < LEVEL_CHALLENGED or provider.offer is None:
        return Small(0)
    model = model_id(slot)
    gpus = {
        gpu
        for item in state.attestations.get(provider.owner) or ()
        if item.model == model
        and item.peer_key == provider.offer.peer_key
        and item.expires > at
        and item.vram_bytes * 100 >= slot.vram_bytes * COVERED_PERCENT
        and not item.is_disputed
        for gpu in item.gpus
    }
    needed = gpus_needed(provider.offer.slots, slot.gpu)
    return LEVEL_CHALLENGED if len(gpus) >= needed else Small(0)


def model_id(slot: SlotOffer) -> Hash32:
    return hash_tuple("gpu-model", slot.gpu or CPU.name)


def is_known(state: StateTables, owner: Address, record: Hash32) -> bool:
    return any(item.record == record for item in state.attestations.get(owner) or ())
