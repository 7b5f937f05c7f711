"""Performs the core's effects: signs and sends messages, runs tasks, sends transactions.

It decides nothing and reports events. It drops an effect that its lease no longer calls for.
`machines.duties` says what a phase calls for, so nothing stores that.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import SubprocessError
from typing import assert_never

from quorate_content.dag.content_limits import AbsentEverywhere
from quorate_node.base.operator_keys import OperatorKeys, send_under_any_key
from quorate_node.core import effects, events, machines
from quorate_node.core.events import EventSink
from quorate_node.core.phases import Lapsed, Over, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.executors.base.kept_log import HEAD_BYTES
from quorate_node.executors.job_runner import JobRunner
from quorate_node.market.announcements import Announcements
from quorate_node.market.content_sources import JobSources
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.owner.funded_orders import FundedExecution, keep
from quorate_node.owner.jury import JuryService
from quorate_node.rentals.egress import RentalEgress
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.ports import Clock, Peers, Signer, TaskState
from quorate_protocol.messages.signed import Accept, Commit, Decline
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, ExitStatus, Hash32, Seconds, UnixSeconds

SEND_SECONDS = Seconds(10)
LOG_SECONDS = Seconds(5)
LOG_END_SECONDS = 5.0  # in which what a log lacks at the coordinator is sent before the Commit
LOG_RETRY_SECONDS = 1.0
FETCH_RETRY_SECONDS = 1.0
ABSENT_TRIES = 3  # when all sources say that they do not have an input; then the job is given up
MACHINE_RETRY_SECONDS = 2.0
METER_RETRY_SECONDS = 1.0
ROOM_RETRY_SECONDS = 1.0
METER_LATER = (Code.BUSY, Code.TOO_EARLY)
FULL = {
    "outputs": b"\n[/outputs is full; ask for more with --outputs or --disk]\n",
    "scratch": b"\n[/scratch and /tmp are full; ask for more with --tmp or --disk]\n",
}
LOG_CHUNK_BYTES = frames.LOG_TEXT_MAX // 2

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EffectPerformer:
    """Performs the effects of the provider's core."""

    core: ProviderCore
    actor: EventSink
    job_runner: JobRunner
    coordinators: Mapping[Address, Coordinator]
    peers: Mapping[Address, Peers]
    operator_keys: OperatorKeys
    announcements: Announcements
    jury_service: JuryService
    evidence_folder: Path
    clock: Clock
    egress: RentalEgress | None = None  # None: no rental of this executor can have it
    # by lease: up to where its log has been delivered
    logged: dict[Hash32, int] = field(default_factory=dict)
    full: dict[Hash32, bytes] = field(default_factory=dict)  # what to say of full volumes

    async def submit(self, event: events.Event) -> None:
        await self.actor.submit(event)

    async def perform(self, effect: effects.Effect) -> None:
        """Raises Unavailable if the outbox is to try again, Refused if that is useless."""
        try:
            await self._perform(effect)
        except (OSError, SubprocessError) as error:
            # The machine has no disk space, descriptors or processes left, perhaps because of a
            # job. The daemon must survive that. The lease lapses at its own deadline.
            raise Unavailable(f"this machine: {error}", MACHINE_RETRY_SECONDS) from error

    async def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendOffer():
                await self.announcements.send_offer(
                    effect.seq, effect.expires, self.core.scalars.offer_seq
                )
            case effects.SendVote() | effects.SendJuryReveal() | effects.Reexecute():
                await self.jury_service.perform(effect, self.submit)
            case effects.StopTask():
                await self.job_runner.executor.stop(effect.assignment_hash.hex())
            case effects.RemoveTask():
                self.logged.pop(effect.assignment_hash, None)
                self.full.pop(effect.assignment_hash, None)
                await self.job_runner.remove(effect.assignment_hash.hex())
            case effects.ForgetLease():
                # This removes what a lapsed lease left. The pin of the ciphertext expires by
                # itself.
                await self.job_runner.remove(effect.assignment_hash.hex())
            case _:
                if self._is_called_for(effect):
                    await self._perform_lease(effect)

    async def refused(self, effect: effects.Effect, refusal: Refused) -> None:
        """Reports an effect that a peer or the executor refused for good."""
        match effect:
            case (
                effects.SendAccept()
                | effects.FetchInputs()
                | effects.StartTask()
                | effects.PublishOutput()
            ):
                # Only what the spec and the image say is read as malformed when a task starts.
                is_impossible = (
                    isinstance(effect, effects.StartTask) and refusal.code is Code.MALFORMED
                )
                why = f"{type(effect).__name__}: {refusal}"
                await self.submit(events.TaskFailed(effect.assignment_hash, why, is_impossible))
            case effects.SendCommit() if refusal.code is not Code.NOT_STORED:
                await self.submit(
                    events.TaskFailed(effect.assignment_hash, f"commit refused: {refusal}")
                )
            case effects.Reexecute():
                await self.submit(events.Reexecuted(effect.case_id, ZERO_HASH))
            case _:
                log.warning("%s: %s", effect.key, refusal)

    def _is_called_for(self, effect: effects.LeaseEffect) -> bool:
        found = self.core.executions.get(effect.assignment_hash)
        return found is not None and any(duty.key == effect.key for duty in machines.duties(found))

    async def _perform_lease(self, effect: effects.LeaseEffect) -> None:
        match effect:
            case effects.SendAccept():
                await self._send_signed(
                    effect.assignment_hash, effect.coordinator, frames.AcceptSent, effect.accept
                )
                await self.submit(events.AcceptDelivered(effect.assignment_hash))
            case effects.SendDecline():
                if self.clock.now() <= effect.give_up_at:
                    await self._send_signed(
                        effect.assignment_hash,
                        effect.coordinator,
                        frames.DeclineSent,
                        effect.decline,
                    )
            case effects.FetchInputs():
                await self._fetch(effect)
            case effects.StartTask():
                await self._await_room(effect)
                await self.job_runner.start(
                    effect.assignment_hash.hex(), effect.spec, effect.pool, effect.gpus
                )
                await self.submit(events.TaskStarted(effect.assignment_hash))
            case effects.WatchTask():
                await self._watch(effect)
            case effects.PublishOutput():
                await self._publish(effect)
            case effects.SendCommit():
                await self._send_commit(effect)
            case effects.SendMeter():
                await self._send_meter(effect)
            case effects.KeepEvidence():
                await self._keep_evidence(effect)
            case effects.SendReveal():
                await self._send(effect.coordinator, frames.RevealSent(effect.reveal))
            case effects.StopTask() | effects.RemoveTask() | effects.ForgetLease():
                raise AssertionError("_perform handles these effects itself")
            case _:
                assert_never(effect)

    async def _await_room(self, start: effects.StartTask) -> None:
        """Raises Unavailable while a container ends whose lease in this pool is over."""
        for found in [self.core.executions[name] for name in tuple(self.core.done.keys())]:
            is_over = isinstance(found.phase, Over | Lapsed) and found.pool == start.pool
            state = self.job_runner.executor.state
            if is_over and await state(found.lease_id) is TaskState.RUNNING:
                raise Unavailable(f"lease {found.lease_id} still ends", ROOM_RETRY_SECONDS)

    # ------------------------------------------------------------------------------------- messages

    async def _send(
        self, coordinator: Address, frame: frames.Frame, seconds: Seconds = SEND_SECONDS
    ) -> None:
        peers = self.peers.get(coordinator)
        if peers is None:
            raise Unavailable(f"coordinator 0x{coordinator.hex()} is not served any more", 60.0)
        answer = frames.decode(await peers.request(coordinator, frames.encode(frame), seconds))
        if not isinstance(answer, frames.Ok):
            raise Unavailable(
                f"coordinator 0x{coordinator.hex()} answered {type(answer).__name__}", 5.0
            )

    async def _send_signed(
        self,
        assignment_hash: Hash32,
        coordinator: Address,
        kind: type[frames.AcceptSent] | type[frames.DeclineSent] | type[frames.CommitSent],
        message: Accept | Decline | Commit,
    ) -> None:
        """With the key valid at acceptBy, or another one that the coordinator knows."""
        accept_by = self.core.executions[assignment_hash].assignment.message.accept_by

        async def send(signer: Signer) -> None:
            envelope = seal(self.core.terms.domain, message, signer.sign)
            # The caller passes a message that fits `kind`.
            await self._send(coordinator, kind(envelope))  # type: ignore[arg-type]

        await send_under_any_key(self.operator_keys.for_moment(accept_by), send)

    async def _send_commit(self, effect: effects.SendCommit) -> None:
        try:
            await self._send_signed(
                effect.assignment_hash, effect.coordinator, frames.CommitSent, effect.commit
            )
        except Refused as refused:
            if refused.code is not Code.NOT_STORED:
                raise
            # The coordinator's store has lost the ciphertext. The Commit names exactly that one, so
            # the node uploads it again, and the outbox retries the Commit.
            await self._upload(effect.coordinator, effect.commit.encrypted_output)
            raise Unavailable(
                "the coordinator lost the ciphertext; it was uploaded again", 0.5
            ) from refused

    async def _send_meter(self, effect: effects.SendMeter) -> None:
        """A refusal that may pass is tried again, until a later meter takes its place."""
        lease, usage = effect.assignment_hash, effect.usage_ms
        refusal = ""
        try:
            frame = frames.Metered(lease, usage, effect.exit_status)
            await self._send(effect.coordinator, frame)
        except Refused as refused:
            if refused.code in METER_LATER:
                raise Unavailable(f"meter: {refused}", METER_RETRY_SECONDS) from refused
            refusal = str(refused)
        await self.submit(events.MeterAnswered(lease, usage, refusal))

    async def _keep_evidence(self, effect: effects.KeepEvidence) -> None:
        """Signs the Commit with the key that the chain takes, and keeps all in a file."""
        found = self.core.executions[effect.assignment_hash]
        phase, assignment = found.phase, found.assignment
        assert isinstance(phase, Revealed) and phase.receipt is not None, "the chain needs both"
        key = self.operator_keys.valid_at(assignment.message.accept_by)
        commit = seal(self.core.terms.domain, phase.commit, key.sign)
        execution = FundedExecution(
            order=effect.order,
            index=effect.index,
            blind=effect.blind,
            assignment=assignment,
            commit=commit,
            receipt=phase.receipt,
            reveal=phase.reveal,
            revealed_at=UnixSeconds(int(self.clock.now())),
        )
        await asyncio.to_thread(keep, self.evidence_folder, execution)

    async def _upload(self, coordinator: Address, ciphertext: Hash32) -> None:
        cid = await self.job_runner.store.resolve(ciphertext)
        if cid is None:
            raise Refused(Code.NOT_STORED, "the ciphertext is no longer in the content store")
        served = self.coordinators.get(coordinator)
        if served is None:
            raise Unavailable(f"coordinator 0x{coordinator.hex()} is not served any more", 60.0)
        await served.upload(self.job_runner.store, cid)

    # ---------------------------------------------------------------------------------------- tasks

    async def _fetch(self, effect: effects.FetchInputs) -> None:
        left = effect.give_up_at - self.clock.now()
        if left <= 0:
            return  # too late: the core's Tick at commitBy ends the lease
        coordinator = self.coordinators.get(effect.coordinator)
        sources = coordinator.sources(effect.sources) if coordinator else JobSources()
        lease_id, rate = effect.assignment_hash.hex(), 0
        for tries_left in reversed(range(ABSENT_TRIES)):
            try:
                rate = await self.job_runner.fetch(lease_id, effect.spec, sources, left)
                break
            except AbsentEverywhere as error:
                if not tries_left:
                    raise Refused(Code.NOT_STORED, str(error)) from error
                await self.clock.sleep(FETCH_RETRY_SECONDS)
            except Unavailable as error:
                # The store would pause longer before it asks all sources again, but the lease has
                # a deadline.
                pause = min(error.retry_after, FETCH_RETRY_SECONDS)
                raise Unavailable(str(error), pause) from error
        await self.submit(events.InputsFetched(effect.assignment_hash, rate))

    async def _watch(self, effect: effects.WatchTask) -> None:
        lease_id = effect.assignment_hash.hex()
        found = self.core.executions[effect.assignment_hash]
        gpus, allowed = found.gpus, found.spec.egress
        beside = [
            asyncio.create_task(self._send_logs(effect, follow=True), name=f"logs {lease_id}")
        ]
        if allowed and self.egress is not None:
            serving = self.egress.serve(lease_id, allowed)
            beside.append(asyncio.create_task(serving, name=f"egress {lease_id}"))
        try:
            exited = await self.job_runner.wait(lease_id, gpus)
        except Unavailable:
            if await self.job_runner.executor.state(lease_id) is not TaskState.ABSENT:
                raise
            # Not re-raised: there is no container any more whose end could come.
            await self.submit(events.TaskFailed(effect.assignment_hash, "its container is gone"))
            return
        finally:
            for task in beside:
                task.cancel()
            for error in await asyncio.gather(*beside, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error
        if exited.full:
            self.full[effect.assignment_hash] = b"".join(FULL[name] for name in exited.full)
        await self.submit(
            events.TaskExited(
                effect.assignment_hash, ExitStatus(exited.status), exited.usage.wall_ms
            )
        )

    async def _send_logs(
        self, effect: effects.WatchTask | effects.PublishOutput, follow: bool, note: bytes = b""
    ) -> None:
        """Sends the log from where it was delivered last, and `note` at its end. The coordinator
        drops what it has. The end of a long log is sent whole, for there may be gaps in it.
        """
        lease = effect.assignment_hash
        at = self.logged.get(lease, 0)
        try:
            async for piece in self.job_runner.executor.logs(
                lease.hex(), follow, at if follow else min(at, HEAD_BYTES)
            ):
                for start in range(0, len(piece.text), LOG_CHUNK_BYTES):
                    text = piece.text[start : start + LOG_CHUNK_BYTES]
                    await self._send_log(effect, piece.at + start, text)
            if note:
                await self._send_log(effect, self.logged.get(lease, 0), note)
        except (Unavailable, Refused) as error:
            log.debug("logs of %s end: %s", lease.hex(), error)

    async def _send_log(
        self, effect: effects.WatchTask | effects.PublishOutput, at: int, text: bytes
    ) -> None:
        """Tries again while the coordinator is away: the executor keeps the text until then."""
        frame = frames.LogsSent(effect.assignment_hash, at, text)
        while True:
            try:
                await self._send(effect.coordinator, frame, LOG_SECONDS)
                break
            except Unavailable as error:
                await self.clock.sleep(min(error.retry_after, LOG_RETRY_SECONDS))
        self.logged[effect.assignment_hash] = at + len(text)

    async def _publish(self, effect: effects.PublishOutput) -> None:
        """A repeat finds what is done; sealing gives the same ciphertext."""
        lease_id = effect.assignment_hash.hex()
        try:
            output = await self.job_runner.collect(lease_id, effect.exit_status)
        except Unavailable:
            if await self.job_runner.executor.state(lease_id) is not TaskState.ABSENT:
                raise
            # Not re-raised: the outputs were lost with the container and cannot be collected again.
            await self.submit(events.TaskFailed(effect.assignment_hash, "its outputs are gone"))
            return
        cid = await self.job_runner.seal(lease_id, output.digest, effect.salt)
        await self._upload(effect.coordinator, cid.digest)
        if output.note:
            log.warning("%s: %s", lease_id, output.note)
        note = self.full.get(effect.assignment_hash, b"")
        note += (output.note[:1000] + "\n").encode() if output.note else b""
        with suppress(TimeoutError):  # the job goes on without the rest of its log
            async with asyncio.timeout(LOG_END_SECONDS):
                await self._send_logs(effect, follow=False, note=note)
        await self.submit(events.OutputPublished(effect.assignment_hash, output.digest, cid.digest))
