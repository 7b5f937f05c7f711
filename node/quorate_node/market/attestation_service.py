"""Takes the messages of challenges from coordinators: as prover, or as drawn verifier."""

import asyncio
from collections.abc import Callable, Mapping

from quorate_attestation import session_messages
from quorate_attestation.challenge import GpuClaim
from quorate_attestation.claims import claims_of, cpu_claim
from quorate_attestation.session_messages import (
    ChallengeSent,
    Message,
    NonceSent,
    ProofSent,
    RecordSent,
    RefusalSent,
    RootsSent,
    VerificationAsked,
)
from quorate_node.core.terms import Terms
from quorate_node.market.prover_service import ProverService, Subject
from quorate_node.market.published_records import PublishedRecords
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Sign
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.messages.ports import Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.peers.verifications import Fetch, Verifications, Verifier

SEND_SECONDS = Seconds(20)  # a coordinator asks drawn providers before it answers


class AttestationService:
    """The provider's part in attestation. `run` owns all tasks."""

    def __init__(
        self,
        me: Verifier,
        peers: Mapping[Address, Peers],
        sign: Sign,
        fetch: Fetch,
        records: PublishedRecords,
        subject: Subject | None,
    ) -> None:
        """`subject` is what is attested; without one a provider still verifies others."""
        self._me, self._peers = me, peers
        self._verifications = Verifications(me, sign, self._send_as_verifier, fetch)
        self._coordinators: dict[Hash32, Address] = {}  # of the challenges that it verifies
        self._records = records
        self._prover = ProverService(me, subject, records, self._send) if subject else None

    def attested(self, slots: tuple[SlotOffer, ...]) -> tuple[SlotOffer, ...]:
        """Returns the slots with their newest records, if the owner wants them attested."""
        return self._records.attested(slots) if self._prover is not None else slots

    async def document(self, record: Hash32) -> bytes | None:
        return await self._records.document(record)

    @property
    def is_using_gpus(self) -> bool:
        """Whether a challenge uses GPUs now, so that no job can."""
        return self._prover is not None and self._prover.is_using_gpus

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._verifications.run(), name="verifications")
            if self._prover is not None:
                group.create_task(self._prover.run(), name="prover")

    def take(self, coordinator: Address, body: bytes) -> None:
        """Raises Refused or Unavailable."""
        message = session_messages.decode(body)
        match message:
            case VerificationAsked():
                self._verifications.check_room()
            case ChallengeSent():
                self._begin(coordinator, message)
            case RootsSent() | ProofSent():
                self._verifications.take(message)
            case NonceSent() | RecordSent() | RefusalSent():
                self._provers().take(coordinator, message)
            case _:
                raise Refused(
                    Code.UNSUPPORTED, f"{type(message).__name__} is not sent to a provider"
                )

    def _begin(self, coordinator: Address, sent: ChallengeSent) -> None:
        if sent.challenge.provider == self._me.account:
            self._provers().open(coordinator, sent.challenge)
            return
        if sent.challenge.verifiers[:1] != (coordinator,):
            raise Refused(Code.NOT_YOURS, "challenge: another coordinator opened it")
        self._verifications.open(sent)
        live = {
            digest: self._coordinators[digest]
            for digest in self._verifications.live()
            if digest in self._coordinators
        }
        self._coordinators = live | {sent.challenge.digest(): coordinator}

    def _provers(self) -> ProverService:
        if self._prover is None:
            raise Refused(Code.UNKNOWN, "attestation: this provider has not asked for a challenge")
        return self._prover

    async def _send_as_verifier(self, digest: Hash32, message: Message) -> None:
        await self._send(self._coordinators[digest], message)

    async def _send(self, coordinator: Address, message: Message) -> None:
        peers = self._peers.get(coordinator)
        if peers is None:
            raise Unavailable(f"0x{coordinator.hex()} is not a coordinator of this provider")
        frame = frames.encode(frames.AttestationSent(session_messages.encode(message)))
        await peers.request(coordinator, frame, SEND_SECONDS)


def claims_of_slots(
    terms: Callable[[], Terms], inventory: GpuInventory, peer_key: Hash32
) -> tuple[GpuClaim, ...]:
    """GPUs in run slots, and the CPU if on offer. No share of a GPU can be measured."""
    offered = terms()
    gpus = tuple(
        claim
        for claim in claims_of(inventory, peer_key)
        if claim.uuid in offered.gpus and not claim.uuid.startswith("MIG-")
    )
    has_cpu = any(not slot.gpu for slot in offered.slots)
    return (*gpus, *((cpu_claim(peer_key),) if has_cpu else ()))
