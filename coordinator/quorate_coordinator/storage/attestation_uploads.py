"""The store of attestation documents and proofs (PROTOCOL 10.25).

A provider behind a router cannot serve them, so it uploads them here. Anybody may read them. What
this coordinator fetches to check an attestation is in the same store, without a pin.
"""

from collections.abc import Callable
from pathlib import Path

from quorate_attestation.proof_document import PROOF_BYTES_MAX
from quorate_content.store.content_store import ContentStore
from quorate_content.store.index import Owner, PinNeed
from quorate_content.transfer.upload_limits import UploadGrant, UploadSlots
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.staging import SPARE_BYTES, owner_name
from quorate_protocol.limits import Limits
from quorate_protocol.messages.offer import gpus_needed
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address

PLACES, ACCOUNT_PLACES = 16, 2
STAKED_WEIGHT = 1_000  # for each device
PROBATION_WEIGHT = 1  # such an account costs nothing, so a full store ends its pins first
REMEDY = "proofs of all GPUs on offer may be kept; wait until earlier ones end"


class AttestationUploads:
    """Says who may upload how much, and for how long it is kept."""

    def __init__(
        self, folder: Path, bytes_max: int, state: State, limits: Limits, now: Callable[[], float]
    ) -> None:
        self._state, self._now = state, now
        self._keep_seconds = limits.attestation_ttl + limits.attestation_every
        self._places = UploadSlots(PLACES, ACCOUNT_PLACES)
        self.store = ContentStore(folder, bytes_max, None, SPARE_BYTES, now, lambda _: PinNeed.NONE)

    def grant(self, account: Address) -> UploadGrant:
        """Raises Refused(NO_OFFER) to all but providers with an offer."""
        provider = self._state.providers.get(account)
        if provider is None or provider.offer is None:
            raise Refused(Code.NO_OFFER, "attestation upload: send an offer first")
        slots = provider.offer.slots
        devices = sum(gpus_needed(slots, model) for model in {slot.gpu for slot in slots})
        weight = PROBATION_WEIGHT if provider.is_on_probation else devices * STAKED_WEIGHT
        quota = (devices + 1) * PROOF_BYTES_MAX
        owner = Owner(owner_name(account), quota, weight, REMEDY)
        until = self._now() + self._keep_seconds
        return UploadGrant(self.store, owner, self._places, until, PROOF_BYTES_MAX)
