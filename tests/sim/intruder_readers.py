"""Parties that read what is not theirs, or that choose with what others know.

A stranger, the other client and a run's executors ask for runs. A client with a friend among the
providers witnesses a commit once it knows the beacon round.
"""

from collections.abc import Callable
from random import Random

from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Ended, Job
from quorate_coordinator.core.model.lease import Closed, Committed, Lease, Revealed, Silent
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Witness
from quorate_protocol.units import Address, Round
from sim.parties import DOMAIN, key
from sim.world import World
from support.memory_archive import MemoryArchive

Attack = tuple[Callable[[], object], str] | None
STRANGER = key("stranger")


def read_run(world: World, random: Random) -> Attack:
    """Asks for a run under some account, or under none."""
    state = world.coordinator.core.state
    jobs = list(state.jobs.values())
    if not jobs:
        return None
    final = [job for job in jobs if isinstance(job.phase, Decided) and job.phase.is_final]
    job = random.choice(final if final and random.random() < 0.5 else jobs)
    clients = [client.account.address for client in world.clients]
    executors = [state.leases[digest].provider for digest in job.leases]
    account = random.choice([None, STRANGER.address, *clients, *executors, *executors])
    is_all, is_part = _may_read(world, job, account)
    archive = MemoryArchive()
    access = RunAccess(state, RunReader(state, archive), Outputs(state, archive), ())

    def read() -> None:
        view = access.view(job.id, account)
        assert is_all or view.output is None, "4.61: somebody reads an output that is not its own"
        assert is_all or not view.name, "4.72: a reader of the evidence reads the run's name"
        world.coverage.facts["runs read by their clients" if is_all else "runs read in part"] += 1

    if is_all or is_part:
        return read, "ok"
    world.coverage.facts["private runs refused"] += 1
    return read, "bad-signature" if account is None else "unknown"


def _may_read(world: World, job: Job, account: Address | None) -> tuple[bool, bool]:
    """(all of a run, its evidence) that an account may read, by 4.60 to 4.62."""
    state = world.coordinator.core.state
    is_final = isinstance(job.phase, Decided) and job.phase.is_final
    is_paid = is_final and job.is_covered
    is_open = job.submission.spec.public and (is_paid or isinstance(job.phase, Ended))
    is_all = is_open or account == job.submission.order.message.client
    executed = any(
        state.leases[digest].provider == account and _has_committed(state.leases[digest])
        for digest in job.leases
    )
    is_heard = any(
        job.id == case.job_id
        and case.is_convicted is None
        and (account in case.jurors or account == case.accused)
        for case in state.cases.values()
    )
    return is_all, account is not None and ((is_final and executed) or is_heard)


def _has_committed(lease: Lease) -> bool:
    return isinstance(lease.phase, Committed | Closed | Revealed | Silent)


def late_witness(world: World, random: Random) -> Attack:
    """The client waits for the round, sees whom it draws, and witnesses only then."""
    state = world.coordinator.core.state
    over = [
        job
        for job in state.jobs.values()
        if job.commits and job.witness is None and not isinstance(job.phase, AwaitingRound)
    ]
    if not over:
        return None
    job = random.choice(over)
    client = next(
        item
        for item in world.clients
        if item.account.address == job.submission.order.message.client
    )
    number = job.beacons[0].round if job.beacons else Round(1)
    acked = job.ack.digest(DOMAIN)
    message = Witness(job.commits[-1], acked, number, world.coordinator.now)
    envelope = seal(DOMAIN, message, client.session_key.sign)
    world.coverage.facts["witnesses after the round"] += 1
    return lambda: world.coordinator.take_signed(envelope), "too-late unknown"
