"""The provider as a juror: executes the accused's work again, votes and reveals.

The operator key sends the transactions and pays the gas. The court pays into the owner's balance.
A ballot (the hash of a juror's answer) counts if the operator key that sent it is valid in the
block that includes it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from quorate_contracts import court_facts
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import court
from quorate_contracts.generated.contract_calls import Call
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.core import effects, events, jury_duty
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import jury_lease_id
from quorate_node.executors.job_runner import JobRunner
from quorate_node.market.content_sources import JobSources
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.owner.senders import OperatorSender
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import Clock, EngineRefuses
from quorate_protocol.messages.signed import JuryVote
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, ExitStatus, Hash32
from quorate_runtime.chain import ChainClient

ENGINE_RETRY_SECONDS = 5.0
FETCHES = 10  # about so often a juror asks for content that no source has
FETCH_PAUSE_SECONDS_MAX = 300.0

Submit = Callable[[events.Event], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class JuryService:
    """Performs the effects of jury duty: repeats executions, and sends votes and reveals."""

    core: ProviderCore
    job_runner: JobRunner
    coordinators: Mapping[Address, Coordinator]
    contracts: Contracts
    client: ChainClient
    operator_sender: OperatorSender
    operator_keys: OperatorKeys
    clock: Clock

    async def perform(self, effect: effects.CourtEffect, submit: Submit) -> None:
        """Drops an effect that the duty no longer calls for."""
        match effect:
            case effects.Reexecute():
                await self._reexecute(effect, submit)
            case effects.SendVote():
                if self._has_duty(effect):
                    await self._vote(effect)
                    await submit(events.VoteConfirmed(effect.case_id))
            case effects.SendJuryReveal():
                if self._has_duty(effect):
                    await self._send(effect.key, self._reveal(effect))

    def _reveal(self, effect: effects.SendJuryReveal) -> Call:
        votes, juror = effect.votes, self.core.terms.provider
        place = [vote.juror for vote in votes].index(juror)
        reveal = court.CourtReveal(place, juror, effect.salt, effect.digest)
        links = [court_facts.link(vote.juror, vote.ballot) for vote in votes]
        return self.contracts.court.reveal(effect.execution, links, [reveal])

    def _has_duty(self, effect: effects.CourtEffect) -> bool:
        duty: JuryDuty | None = self.core.jury.get(effect.case_id)
        return duty is not None and any(due.key == effect.key for due in jury_duty.duties(duty))

    async def _send(self, purpose: str, call: Call) -> None:
        await self.operator_sender.send(purpose, call)

    async def _vote(self, effect: effects.SendVote) -> None:
        """Under the chain's key of now; if another is valid in the block, tries again."""
        provider = self.core.terms.provider
        duty: JuryDuty | None = self.core.jury.get(effect.case_id)
        if duty is not None and duty.declined:
            log.warning(
                "case 0x%s: this juror votes void: %s", _name(effect.case_id), duty.declined
            )
        signer = self.operator_keys.named(
            await ask(self.client, self.contracts.stakes.operator_key(provider))
        )
        vote = JuryVote(effect.case_id, provider, effect.ballot)
        envelope = seal(self.core.terms.domain, vote, signer.sign)
        vote_at = court.Vote(effect.jurors.index(provider), effect.ballot, envelope.sig)
        jury = court_facts.jury_bytes(effect.jurors)
        call = self.contracts.court.vote(effect.execution, effect.case_id, jury, [vote_at])
        try:
            await self._send(f"{effect.key}/{signer.address.hex()}", call)
        except Refused as refused:
            now = self.operator_keys.named(
                await ask(self.client, self.contracts.stakes.operator_key(provider))
            )
            if now is signer:
                raise
            raise Unavailable(
                "the operator key changed before a block included the vote; it is sent again", 1.0
            ) from refused

    async def _reexecute(self, effect: effects.Reexecute, submit: Submit) -> None:
        """Submits the digest, then removes task and pins, which never expire. After Unavailable
        they stay: the outbox tries again.
        """
        lease_id = jury_lease_id(effect.case_id, self.core.terms.provider)
        try:
            digest = (
                await self._digest_of_repeat(effect, lease_id) if self._has_duty(effect) else None
            )
        except Refused:
            await self.job_runner.remove(lease_id)
            raise
        await self.job_runner.remove(lease_id)
        if digest is not None:
            await submit(events.Reexecuted(effect.case_id, digest))

    async def _digest_of_repeat(self, effect: effects.Reexecute, lease_id: str) -> Hash32:
        """Zero for a void vote: inputs or image cannot be fetched, or this machine is of another
        determinism class than the results that differ.
        """
        spec = await self._fetched(effect, lease_id)
        if spec is None:
            return ZERO_HASH
        if self.core.terms.class_of(effect.pool, spec) != effect.class_id:
            log.info("case 0x%s is of another determinism class", _name(effect.case_id))
            return ZERO_HASH
        if self.clock.now() > effect.give_up_at:
            return ZERO_HASH
        try:
            await self.job_runner.start(lease_id, spec, effect.pool, effect.gpus)
        except EngineRefuses as refused:
            # This machine may be at fault, so a void vote would be wrong. Hours are left to try
            # again.
            raise Unavailable(
                f"case 0x{_name(effect.case_id)}: {refused.detail}", ENGINE_RETRY_SECONDS
            ) from refused
        exited = await self.job_runner.wait(lease_id, effect.gpus)
        output = await self.job_runner.collect(lease_id, ExitStatus(exited.status))
        return result_digest(ExitStatus(exited.status), output.digest)

    async def _fetched(self, effect: effects.Reexecute, lease_id: str) -> JobSpec | None:
        """None if nobody has them until half of the time is over. A coordinator shows a private run
        to a juror only once it has seen the draw, so a first "not there" may be early.
        """
        stores = tuple(item.source() for item in self.coordinators.values())
        is_devnet = self.core.terms.limits.name == DEVNET.name
        sources = JobSources(stores=stores, may_be_private=is_devnet)
        now = self.clock.now()
        until = now + max(1.0, (effect.give_up_at - now) / 2)
        pause = min(FETCH_PAUSE_SECONDS_MAX, max(1.0, (until - now) / FETCHES))
        while True:
            left = max(1.0, until - self.clock.now())
            try:
                spec = await self.job_runner.spec(
                    effect.spec_hash, sources, left, f"lease:{lease_id}"
                )
                await self.job_runner.fetch(lease_id, spec, sources, left)
                return spec
            except Unavailable as error:
                if self.clock.now() + pause >= until:
                    # Not re-raised: "unavailable" is one of the answers that a juror may give.
                    log.warning(
                        "case 0x%s: the job cannot be executed again: %s",
                        _name(effect.case_id),
                        error,
                    )
                    return None
            await self.clock.sleep(pause)


def _name(case_id: Hash32) -> str:
    return case_id.hex()[:12]
