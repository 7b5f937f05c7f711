"""The coordinator's tables. Only the modules of the core write to them, inside one step."""

from quorate_coordinator.core.model.accusations import Case, Fault, UnverifiableImage
from quorate_coordinator.core.model.entities import (
    AgreedHosts,
    Attestation,
    Client,
    EligibleSnapshot,
    Job,
    JobHold,
    MedianPrice,
    OwnRecord,
    Payee,
    PoolSlots,
    Provider,
    Sending,
    SlotList,
    Windows,
    WorkWindow,
)
from quorate_coordinator.core.model.events import DeclineReceived
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.nonces import UsedNonces
from quorate_protocol.codec.tables import Table, Tables
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Accept
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.units import Address, BlockNumber, Hash32, Sequence, UnixSeconds

OWN = "own"  # the only key of `own_record`
LINES = "lines"
NEWEST_ROUND = "newest-round"
LIVE_BYTES = "live-bytes"  # of memory, of all live orders


class StateTables(Tables):
    """Every table of the coordinator. Its snapshot is the whole state."""

    def __init__(self) -> None:
        super().__init__()
        self.providers: Table[Address, Provider] = Table(Address, Provider)
        self.pool_slots: Table[Hash32, PoolSlots] = Table(Hash32, PoolSlots)
        self.clients: Table[Address, Client] = Table(Address, Client)
        self.payees: Table[Address, Payee] = Table(Address, Payee)
        # by kind: payroll, redeem, locks, or a client's give-back
        self.sending: Table[str, Sending] = Table(str, Sending)
        self.jobs: Table[Hash32, Job] = Table(Hash32, Job)
        # by `Ack.eligibleRoot`
        self.eligible_snapshots: Table[Hash32, EligibleSnapshot] = Table(Hash32, EligibleSnapshot)
        self.slot_lists: Table[int, SlotList] = Table(int, SlotList)
        self.newest_slot_lists: Table[Hash32, int] = Table(Hash32, int)  # by pool
        self.live: Table[Hash32, bool] = Table(Hash32, bool)
        self.held: Table[Hash32, JobHold] = Table(Hash32, JobHold)
        # finished job -> when it may leave the state
        self.finished: Table[Hash32, UnixSeconds] = Table(Hash32, UnixSeconds)
        self.leases: Table[Hash32, Lease] = Table(Hash32, Lease)
        self.accepts: Table[Hash32, Envelope[Accept]] = Table(Hash32, Envelope[Accept])
        self.declines: Table[Hash32, DeclineReceived] = Table(Hash32, DeclineReceived)
        self.leases_in_slots: Table[Address, tuple[Hash32, ...]] = Table(
            Address, tuple[Hash32, ...]
        )
        # by provider; a class that is missing has the first window
        self.work_windows: Table[Address, tuple[WorkWindow, ...]] = Table(
            Address, tuple[WorkWindow, ...]
        )
        # most executions at once of a client whose job three providers declined
        self.client_windows: Table[Address, int] = Table(Address, int)
        self.nonces: Table[Address, UsedNonces] = Table(Address, UsedNonces)
        self.trust: Table[Address, Trusts] = Table(Address, Trusts)
        self.attestations: Table[Address, tuple[Attestation, ...]] = Table(
            Address, tuple[Attestation, ...]
        )
        # hash of a GPU's UUID and model -> the provider whose record named it last
        self.gpu_owners: Table[Hash32, Address] = Table(Hash32, Address)
        self.windows: Table[Address, Windows] = Table(Address, Windows)
        self.median_prices: Table[Hash32, MedianPrice] = Table(Hash32, MedianPrice)
        # provider -> prefixes of content of jobs that it committed, the newest last
        self.fetched: Table[Address, tuple[bytes, ...]] = Table(Address, tuple[bytes, ...])
        # payees whose final pay is above what was signed
        self.vouchers_due: Table[Address, bool] = Table(Address, bool)
        self.faults: Table[Address, tuple[Fault, ...]] = Table(Address, tuple[Fault, ...])
        self.blocks: Table[BlockNumber, Hash32] = Table(BlockNumber, Hash32)
        # by client
        self.unverifiable: Table[Address, tuple[UnverifiableImage, ...]] = Table(
            Address, tuple[UnverifiableImage, ...]
        )
        # by `siblings.key_of`
        self.siblings: Table[Hash32, tuple[AgreedHosts, ...]] = Table(
            Hash32, tuple[AgreedHosts, ...]
        )
        self.cases: Table[Hash32, Case] = Table(Hash32, Case)  # by `Case.execution`
        # digest of a primary's Commit -> its job
        self.commits: Table[Hash32, Hash32] = Table(Hash32, Hash32)
        self.events: Table[Hash32, tuple[JobEvent, ...]] = Table(Hash32, tuple[JobEvent, ...])
        self.own_record: Table[str, OwnRecord] = Table(str, OwnRecord)
        # not in `own_record`, because `LINES` changes with every line of history
        self.counters: Table[str, int] = Table(str, int)

    @property
    def event_seq(self) -> Sequence:
        return Sequence(self.counters.get(LINES) or 0)

    @property
    def own(self) -> OwnRecord:
        return self.own_record.get(OWN) or OwnRecord()
