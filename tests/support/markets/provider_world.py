"""Shared by the provider tests: terms, a coordinator's key, signed messages, and a core that the
test drives.
"""

from dataclasses import dataclass

from msgspec.structs import asdict

from quorate_node.core import events
from quorate_node.core.effects import Effect
from quorate_node.core.phases import Execution, Receipted, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import Policy, RunSlots, SlotResources, Terms
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import GIB, JobSpec
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.messages.ports import BeaconInfo, Sandbox
from quorate_protocol.messages.signed import (
    Assignment,
    CommitEntry,
    CommitReceipt,
    CommitSet,
    Stop,
    Verdict,
    Voucher,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.step import Input
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    ExitStatus,
    Hash32,
    JobKind,
    Label,
    Milliseconds,
    Outcome,
    Price,
    PriceTier,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.messages import a_spec, blank
from support.offers import a_slot

PROVIDER = Address(b"\x11" * 20)
OPERATOR = KeySigner(b"\x01" * 32)
COORDINATOR = Address(b"\x22" * 20)
STATEMENT_KEY = KeySigner(b"\x02" * 32)
STRANGER = KeySigner(b"\x03" * 32)
DOMAIN = Domain(31337, Address(b"\x33" * 20))
GENESIS = 1_700_000_000
NOW = UnixSeconds(GENESIS + 1001)
IMAGE = "docker.io/library/python@sha256:" + "ab" * 32
JOB = Hash32(b"\x44" * 32)
ACCUSED = Address(b"\x99" * 20)
POOL, CASE_SPEC = CPUS.id(), Hash32(b"\x01" * 32)
CASE_CLASS = Hash32(b"\x02" * 32)


def slots(count: int = 1) -> tuple[SlotOffer, ...]:
    """Returns the slot offers of one pool."""
    return (a_slot(CPUS, 100_000, count),)


def make_terms(count: int = 1, sandbox: Sandbox = Sandbox.NOOP) -> Terms:
    """Returns the terms of a devnet provider with `count` run slots."""
    room = SlotResources(2000, 2 * GIB, 8 * GIB, GIB, 16 * GIB)
    policy = Policy(Price(50_000), (), (JobKind.TASK,))
    beacon = BeaconInfo(bytes(96), Seconds(2), GENESIS)
    return Terms(
        PROVIDER,
        DOMAIN,
        DEVNET,
        beacon,
        {COORDINATOR: STATEMENT_KEY.address},
        tuple(RunSlots(replace(item, **asdict(room)), room) for item in slots(count)),
        sandbox,
        policy,
    )


def make_spec(name: str = "tile", max_duration: int = 30) -> JobSpec:
    """Returns the spec of a small job."""
    wanted = {"image": IMAGE, "image_bytes": 0, "argv": ("true",), "working_dir": "/"}
    return replace(a_spec(name), max_duration=Seconds(max_duration), **wanted)


def make_assignment(
    spec: JobSpec, number: int = 1, at: UnixSeconds = NOW, price: int = 100_000
) -> Assignment:
    """Returns an Assignment to this provider, which it must answer within five seconds."""
    number_id, accept_by = Hash32(number.to_bytes(32, "big")), UnixSeconds(at + 5)
    return Assignment(
        number_id,
        COORDINATOR,
        PROVIDER,
        spec.digest(),
        CPUS.id(),
        PriceTier.ON_DEMAND,
        Price(price),
        spec.paid_seconds(),
        accept_by,
    )


def signed_assignment(
    spec: JobSpec, number: int = 1, at: UnixSeconds = NOW
) -> Envelope[Assignment]:
    """Returns an Assignment that the coordinator signed."""
    return seal(DOMAIN, make_assignment(spec, number, at), STATEMENT_KEY.sign)


@dataclass
class Driver:
    """Drives a core with a clock that the test sets.

    The random values count up, so salts differ and tests repeat exactly.
    """

    core: ProviderCore
    now: UnixSeconds = NOW
    rolls: int = 0

    def do(self, event: events.Event, after: int = 0) -> tuple[Effect, ...]:
        """Steps an event, `after` seconds later; returns its effects."""
        self.now = UnixSeconds(self.now + after)
        self.rolls += 1
        return self.core.step(
            Input(self.now, Hash32(self.rolls.to_bytes(32, "big")), event)
        ).effects

    def refusal(self, event: events.Event, after: int = 0) -> Code:
        """Steps an event that must be refused, and checks that nothing changed."""
        before = self.core.snapshot()
        try:
            self.do(event, after)
        except Refused as refused:
            assert self.core.snapshot() == before, "a refusal changed the state"
            return refused.code
        raise AssertionError(f"{type(event).__name__} was not refused")

    def assign(self, number: int = 1, spec: JobSpec | None = None) -> Hash32:
        """Steps a new assignment; returns its hash."""
        spec = spec or make_spec()
        envelope = signed_assignment(spec, number, self.now)
        self.do(
            events.AssignmentReceived(
                envelope, spec, ("http://127.0.0.1:1/v1/content",), STATEMENT_KEY.address
            )
        )
        return digest(DOMAIN, envelope.message)

    def execution(self, lease: Hash32) -> Execution:
        """Returns the execution as it is now."""
        return self.core.executions[lease]

    def advance(self, lease: Hash32, until: type) -> Execution:
        """Steps the events that the shell would report, until the execution is in the phase."""
        for event in script(lease):
            if isinstance(self.execution(lease).phase, until):
                break
            self.do(event)
        if not isinstance(self.execution(lease).phase, until) and until in (Receipted, Revealed):
            self.do(receipt(self.execution(lease)))
        if not isinstance(self.execution(lease).phase, until) and until is Revealed:
            self.do(commit_set(self.execution(lease), self.now))
        assert isinstance(self.execution(lease).phase, until)
        return self.execution(lease)


def script(lease: Hash32) -> tuple[events.Event, ...]:
    """Returns the events of a run without incidents, up to the commit."""
    return (
        events.AcceptDelivered(lease),
        events.InputsFetched(lease),
        events.TaskStarted(lease),
        events.TaskExited(lease, ExitStatus(0), Milliseconds(1500)),
        events.OutputPublished(lease, Hash32(b"\x55" * 32), Hash32(b"\x66" * 32)),
    )


def receipt(
    execution: Execution, signer: KeySigner = STATEMENT_KEY, time: UnixSeconds | None = None
) -> events.CommitReceiptReceived:
    """Returns the coordinator's receipt for the commit. By default its time is acceptBy, when the
    run has had its time.
    """
    commit = execution.commit()
    assert commit is not None
    stored_at = execution.assignment.message.accept_by if time is None else time
    message = CommitReceipt(digest(DOMAIN, commit), stored_at)
    return events.CommitReceiptReceived(seal(DOMAIN, message, signer.sign), signer.address)


def commit_set(
    execution: Execution,
    closed_at: UnixSeconds,
    others: tuple[CommitEntry, ...] = (),
    signer: KeySigner = STATEMENT_KEY,
) -> events.CommitSetReceived:
    """Returns a CommitSet that holds the execution's commit."""
    commit = execution.commit()
    assert commit is not None
    entry = CommitEntry(execution.assignment_hash, PROVIDER, digest(DOMAIN, commit))
    message = blank(
        CommitSet,
        job_id=JOB,
        ordered=(entry, *others),
        blinds=(ZERO_HASH,) * (1 + len(others)),
        beacon_round=Round(1),
        closed_at=closed_at,
    )
    return events.CommitSetReceived(
        execution.assignment_hash, seal(DOMAIN, message, signer.sign), signer.address
    )


def verdict(
    lease: Hash32, seq: int = 1, signer: KeySigner = STATEMENT_KEY
) -> events.VerdictReceived:
    """Returns a verdict that accepts the execution."""
    message = blank(
        Verdict,
        job_id=JOB,
        seq=Sequence(seq),
        label=Label.QUORUM_2,
        outcome=Outcome.ACCEPTED,
        batches=Small(1),
        group=(lease,),
        time=NOW,
    )
    return events.VerdictReceived(lease, seal(DOMAIN, message, signer.sign), signer.address)


def stop(lease: Hash32, coordinator: Address = COORDINATOR) -> events.StopReceived:
    """Returns a Stop from a client whose session the coordinator knows."""
    return events.StopReceived(lease, seal(DOMAIN, Stop(JOB, NOW), STRANGER.sign), coordinator)


def voucher(
    cumulative: int, signer: KeySigner = STATEMENT_KEY, payee: Address = PROVIDER
) -> events.VoucherReceived:
    """Returns the coordinator's voucher."""
    message = Voucher(COORDINATOR, payee, Amount(cumulative))
    return events.VoucherReceived(COORDINATOR, seal(DOMAIN, message, signer.sign), signer.address)


def case_opened(
    number: int = 7,
    accused: Address = ACCUSED,
    pool: Hash32 = POOL,
    spec_hash: Hash32 = CASE_SPEC,
    class_id: Hash32 = CASE_CLASS,
    max_duration: int = 0,
    pay: int = 0,
) -> events.ChainCaseOpened:
    """Returns the event of a case. Its number gives its execution and id."""
    execution, case_id = case_names(number)
    duration = Seconds(max_duration)
    return events.ChainCaseOpened(
        execution, case_id, accused, spec_hash, pool, class_id, duration, Amount(pay)
    )


def case_names(number: int = 7) -> tuple[Hash32, Hash32]:
    """Returns the execution and the id of a case."""
    return Hash32(number.to_bytes(32, "big")), Hash32((1000 + number).to_bytes(32, "big"))


def jury_drawn(*jurors: Address, number: int = 7, vote_by: int = NOW + 60) -> events.ChainJuryDrawn:
    """Returns the event of a jury with these jurors."""
    return events.ChainJuryDrawn(case_names(number)[0], jurors, UnixSeconds(vote_by))
