"""Finds the credit that final epochs give this provider on chain, and claims it.

The operator key sends the claim and pays the gas. The contract pays the owner's payout address.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.deploy import Contracts
from quorate_node.chain.calls import ask
from quorate_node.chain.operator_sender import OperatorSender
from quorate_node.core import effects, events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.coordinator_client import Coordinator, ProofView
from quorate_node.messaging.frame_handler import EventSink
from quorate_protocol.limits import USD
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.epoch_tree import root_of
from quorate_protocol.units import Address, Amount, Sequence
from quorate_runtime.chain import ChainClient

SEND_SECONDS = 60.0
LOOK_SECONDS_MAX = 600.0
WORTH = Amount(5 * USD)  # unclaimed credit: many times the gas of a claim

Submit = Callable[[events.Event], Awaitable[None]]

log = logging.getLogger(__name__)


async def checked_proof(coordinator: Coordinator, epoch: Epoch, provider: Address) -> ProofView:
    """Returns a provider's leaf in an epoch, checked against the root that the chain has.

    Raises Refused(BAD_AMOUNT) if the proof does not lead to the root, and Refused(UNKNOWN) if the
    epoch has no leaf of the provider.
    """
    view = await coordinator.proof(epoch.number)
    root = root_of(view.leaf, view.proof)
    is_root = (root.hash, root.final, root.held) == (epoch.root, epoch.sum_final, epoch.sum_held)
    if view.epoch != epoch.number or view.leaf.account != provider or not is_root:
        raise Refused(
            Code.BAD_AMOUNT,
            f"epoch {epoch.number}: the coordinator's proof does not lead to the root on chain",
        )
    return view


class Claims:
    """Reads this provider's proofs of credit, and sends the claim transactions."""

    def __init__(
        self,
        core: ProviderCore,
        coordinators: Mapping[Address, Coordinator],
        contracts: Contracts,
        client: ChainClient,
        operator_sender: OperatorSender,
    ) -> None:
        self._core, self._coordinators, self._contracts = core, coordinators, contracts
        self._client, self._operator_sender = client, operator_sender

    async def newest_proof(self, coordinator: Coordinator, known: int) -> ProofView | None:
        """Returns this provider's leaf in the coordinator's newest final epoch.

        The proof is checked against the root on chain. None if that epoch is not newer than
        `known`.
        """
        epoch = await ask(self._client, self._contracts.epochs.newest_final(coordinator.address))
        if epoch.number <= known:
            return None
        return await self._proof(coordinator, epoch)

    async def _proof(self, coordinator: Coordinator, epoch: Epoch) -> ProofView:
        return await checked_proof(coordinator, epoch, self._core.terms.provider)

    async def perform(self, effect: effects.SendClaim, submit: Submit) -> None:
        """Sends the claim for the effect's epoch, unless a newer epoch is final."""
        coordinator = self._coordinators.get(effect.coordinator)
        if coordinator is None:
            return
        epoch = await ask(self._client, self._contracts.epochs.newest_final(effect.coordinator))
        if epoch.number != effect.epoch:
            return  # a newer epoch is final, and has its own claim
        view = await self._proof(coordinator, epoch)
        try:
            call = self._contracts.epochs.claim(
                effect.coordinator, epoch.number, view.leaf, view.proof
            )
            await self._operator_sender.send(effect.key, call, SEND_SECONDS)
        except Refused:
            # Not re-raised if the chain has paid the credit: the coordinator claims for all
            # providers, and its claim may have come first.
            query = self._contracts.epochs.claimed(effect.coordinator, view.leaf.account)
            if await ask(self._client, query) < view.leaf.final:
                raise
        await submit(events.ClaimConfirmed(effect.coordinator, view.leaf.final))


class ClaimSender:
    """Looks for final epochs that credit more than this provider has claimed.

    It reports such credit to the core, which orders the claim.
    """

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        coordinators: Mapping[Address, Coordinator],
        claims: Claims,
        client: ChainClient,
        contracts: Contracts,
        claim_least: Amount,
        clock: Clock,
    ) -> None:
        self._core, self._actor, self._coordinators = core, actor, coordinators
        self._claims, self._client, self._contracts = claims, client, contracts
        self._least, self._clock = claim_least, clock
        self._seen: dict[Address, int] = {}  # coordinator -> number of its newest final epoch
        self._final: dict[Address, Amount] = {}  # coordinator -> credit in that epoch
        self._owed_since: dict[
            Address, float
        ] = {}  # coordinator -> when unclaimed credit was first seen

    async def run(self) -> None:
        """Calls `look` for each coordinator again and again, until cancelled."""
        pause = min(LOOK_SECONDS_MAX, max(1.0, self._core.terms.limits.epoch_every))
        while True:
            for coordinator in self._coordinators.values():
                try:
                    await self.look(coordinator)
                except Unavailable as error:
                    log.debug("claims wait: %s", error)  # the health monitor reports the chain
                except Refused as refused:
                    # Usually the provider has no leaf yet. A wrong proof is the coordinator's
                    # fault, so it is logged as an error.
                    level = logging.ERROR if refused.code is Code.BAD_AMOUNT else logging.DEBUG
                    log.log(level, "no claim against 0x%s: %s", coordinator.address.hex(), refused)
            await self._clock.sleep(pause)

    async def look(self, coordinator: Coordinator) -> None:
        """Reads one coordinator's newest final epoch, and what the chain has paid if more may be
        paid than is known here.
        """
        address, provider = coordinator.address, self._core.terms.provider
        view = await self._claims.newest_proof(coordinator, self._seen.get(address, 0))
        if view is not None:
            self._check_statement(address, view.epoch, view.leaf.final)
            self._seen[address], self._final[address] = view.epoch, view.leaf.final
        known = self._core.claimed.get(address) or 0
        if known >= self._final.get(address, 0):
            self._owed_since.pop(address, None)
            return
        paid = await ask(self._client, self._contracts.epochs.claimed(address, provider))
        if paid > known:
            await self._actor.submit(events.ClaimConfirmed(address, paid))
        await self._claim_if_left(address, paid)

    async def _claim_if_left(self, coordinator: Address, paid: Amount) -> None:
        """Reports credit that has stayed unclaimed, so that the core claims it.

        Credit that is worth the gas is reported after one epoch, other credit after a whole period.
        Until then the node waits: the coordinator claims for all providers at once, for less gas.
        """
        final, now = self._final.get(coordinator, Amount(0)), self._clock.now()
        if final < paid + self._least:
            self._owed_since.pop(coordinator, None)
            return
        limits = self._core.terms.limits
        epochs = 1 if final - paid >= WORTH else limits.claim_every_epochs
        if now - self._owed_since.setdefault(coordinator, now) >= limits.epoch_every * epochs:
            await self._actor.submit(
                events.ChainEpochFinal(coordinator, Sequence(self._seen[coordinator]), final)
            )
            self._owed_since[coordinator] = now

    def _check_statement(self, coordinator: Address, epoch: int, final: Amount) -> None:
        signed = self._core.statements.get(coordinator)
        if signed is not None and signed.message.epoch < epoch and signed.message.final > final:
            log.error(
                "0x%s signed a statement of %d in epoch %d, but epoch %d credits %d",
                coordinator.hex(),
                signed.message.final,
                signed.message.epoch,
                epoch,
                final,
            )
