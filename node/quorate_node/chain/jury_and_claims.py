"""The provider before the chain: re-executing for a jury, voting, revealing, claiming.

Votes and claims are sent by the operator key, which pays the gas; the court and the epochs pay
the owner. A ballot counts under the key that is valid in the block that takes it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.court import CaseId
from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.deploy import Contracts
from quorate_node.chain.calls import ask
from quorate_node.chain.operator_sender import OperatorSender
from quorate_node.core import effects, events, jury_duty
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import jury_lease_id
from quorate_node.jobs.job_runner import JobRunner
from quorate_node.keys.operator_keys import OperatorKeys
from quorate_node.messaging.coordinator_client import Coordinator, ProofView
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import JuryReveal, JuryVote
from quorate_protocol.ports import Clock, EngineRefuses
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.epoch_tree import root_of
from quorate_protocol.units import ZERO_HASH, Address, ExitStatus, Hash32
from quorate_runtime.chain import ChainClient

SEND_SECONDS = 60.0
ENGINE_RETRY_SECONDS = 5.0

Submit = Callable[[events.Event], Awaitable[None]]

_logger = logging.getLogger(__name__)


class JuryService:
    """Effects that end on chain."""

    def __init__(
        self,
        core: ProviderCore,
        job_runner: JobRunner,
        coordinators: Mapping[Address, Coordinator],
        contracts: Contracts,
        client: ChainClient,
        operator_sender: OperatorSender,
        ring: OperatorKeys,
        clock: Clock,
    ) -> None:
        self._core, self._bench, self._coordinators, self._contracts = (
            core,
            job_runner,
            coordinators,
            contracts,
        )
        self._client, self._operator_sender, self._ring, self._clock = (
            client,
            operator_sender,
            ring,
            clock,
        )

    async def perform(
        self,
        effect: effects.CourtEffect | effects.SendClaim | effects.WithdrawCredit,
        submit: Submit,
    ) -> None:
        """Does one effect; what is overtaken is dropped."""
        match effect:
            case effects.SendClaim():
                await self._claim(effect, submit)
            case effects.WithdrawCredit():
                await self._withdraw(effect)
            case effects.Reexecute():
                await self._repeat(effect, submit)
            case effects.SendVote():
                if self._has_duty(effect):
                    await self._vote(effect)
                    await submit(events.VoteConfirmed(effect.case_id))
            case effects.SendJuryReveal():
                if self._has_duty(effect):
                    reveal = JuryReveal(
                        effect.case_id, self._core.terms.provider, effect.digests, effect.salt
                    )
                    await self._send(
                        effect.key, self._contracts.court.reveal(CaseId(effect.case_id), [reveal])
                    )

    def _has_duty(self, effect: effects.CourtEffect) -> bool:
        duty: JuryDuty | None = self._core.jury.get(effect.case_id)
        return duty is not None and any(due.key == effect.key for due in jury_duty.duties(duty))

    async def _send(self, purpose: str, call: Call) -> None:
        await self._operator_sender.send(purpose, call, SEND_SECONDS)

    # ----------------------------------------------------------------------------------------- jury

    async def _vote(self, effect: effects.SendVote) -> None:
        """Under the key of the moment; if that is another one by the time a block takes it,
        again under the next.
        """
        provider = self._core.terms.provider
        signer = self._ring.named(
            await ask(self._client, self._contracts.stakes.operator_key(provider))
        )
        vote = JuryVote(effect.case_id, provider, effect.ballot)
        envelope = seal(self._core.terms.domain, vote, signer.sign)
        call = self._contracts.court.vote(CaseId(effect.case_id), [envelope])
        try:
            await self._send(f"{effect.key}/{signer.address.hex()}", call)
        except Refused as refused:
            now = self._ring.named(
                await ask(self._client, self._contracts.stakes.operator_key(provider))
            )
            if now is signer:
                raise
            raise Unavailable(
                "the operator key was changed while the vote was on its way", 1.0
            ) from refused

    async def _repeat(self, effect: effects.Reexecute, submit: Submit) -> None:
        """Whatever comes of it, nothing stays: pins of inputs have no date, and nobody else
        knows of them. If the world fails: again.
        """
        lease_id = jury_lease_id(effect.case_id, effect.index, self._core.terms.provider)
        try:
            digest = await self._reexecute(effect, lease_id) if self._has_duty(effect) else None
        except Refused:
            await self._bench.remove(lease_id)
            raise
        await self._bench.remove(lease_id)
        if digest is not None:
            await submit(events.Reexecuted(effect.case_id, effect.index, digest))

    async def _reexecute(self, effect: effects.Reexecute, lease_id: str) -> Hash32:
        """The result digest of one named execution; zero when inputs or image cannot be had (the
        vote is void then).
        """
        left = effect.give_up_at - self._clock.now()
        sources = [item.source() for item in self._coordinators.values()]
        try:
            # Half of what is left is for fetching: the other half must be enough to run it.
            spec = await self._bench.spec(
                effect.spec_hash, sources, max(1.0, left / 2), f"lease:{lease_id}"
            )
            await self._bench.fetch(lease_id, spec, sources, max(1.0, left / 2))
        except Unavailable as error:
            # Not re-raised: "unavailable" is an answer of its own in this court.
            _logger.warning(
                "case %d: execution %d cannot be repeated: %s", effect.case_id, effect.index, error
            )
            return ZERO_HASH
        if self._clock.now() > effect.give_up_at:
            return ZERO_HASH
        try:
            await self._bench.start(lease_id, spec, effect.host_class)
        except EngineRefuses as refused:
            # It may be this machine's trouble, and a void vote is no answer to that: there are
            # hours to try again.
            raise Unavailable(
                f"case {effect.case_id}: {refused.detail}", ENGINE_RETRY_SECONDS
            ) from refused
        exited = await self._bench.executor.wait(lease_id)
        output = await self._bench.collect(lease_id, ExitStatus(exited.status))
        return result_digest(ExitStatus(exited.status), output.digest)

    # ---------------------------------------------------------------------------------------- money

    async def newest_proof(self, coordinator: Coordinator, known: int) -> ProofView | None:
        """This provider's checked leaf in the coordinator's newest final epoch, if that is newer
        than `known`.
        """
        epoch = await ask(self._client, self._contracts.epochs.newest_final(coordinator.address))
        if epoch.number <= known:
            return None
        return await self._proof(coordinator, epoch)

    async def _proof(self, coordinator: Coordinator, epoch: Epoch) -> ProofView:
        view = await coordinator.proof(epoch.number)
        root = root_of(view.leaf, view.proof)
        is_root = (root.hash, root.final, root.held) == (
            epoch.root,
            epoch.sum_final,
            epoch.sum_held,
        )
        if (
            view.epoch != epoch.number
            or view.leaf.account != self._core.terms.provider
            or not is_root
        ):
            raise Refused(
                Code.BAD_AMOUNT,
                f"epoch {epoch.number}: the coordinator's proof does not lead to the root on chain",
            )
        return view

    async def _withdraw(self, effect: effects.WithdrawCredit) -> None:
        """Jurors outside the largest agreeing group have nothing coming, and anybody may have
        sent it before.
        """
        account = self._core.terms.provider
        if await ask(self._client, self._contracts.court.credit_of(account)):
            await self._send(effect.key, self._contracts.court.withdraw(account))

    async def _claim(self, effect: effects.SendClaim, submit: Submit) -> None:
        coordinator = self._coordinators.get(effect.coordinator)
        if coordinator is None:
            return
        epoch = await ask(self._client, self._contracts.epochs.newest_final(effect.coordinator))
        if epoch.number != effect.epoch:
            return  # a newer one is final; it has its own claim
        view = await self._proof(coordinator, epoch)
        try:
            await self._send(
                effect.key,
                self._contracts.epochs.claim(
                    effect.coordinator, epoch.number, view.leaf, view.proof
                ),
            )
        except Refused:
            # Not re-raised when the money is there: the coordinator claims for everybody, and may
            # have been faster.
            if (
                await ask(
                    self._client,
                    self._contracts.epochs.claimed(effect.coordinator, view.leaf.account),
                )
                < view.leaf.final
            ):
                raise
        await submit(events.ClaimConfirmed(effect.coordinator, view.leaf.final))
