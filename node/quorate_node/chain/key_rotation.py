"""Changes from one operator key to the next while jobs run.

It registers the new key on chain, and removes the old one when it is no longer needed. The daemon
may crash after any step, because only the keystore and the chain hold the state. A key that is
newer than the chain's is registered. An older one is kept until nothing needs it.

A lease is answered to its end under one key: the one that is valid at its acceptBy. So a daemon
that starts with a new key takes no work until the chain has that key
(`OperatorKeys.may_take_work`). The new key is registered when no acceptBy lies in the future.
"""

import logging
from collections.abc import Iterable, Mapping

from quorate_contracts.deploy import Contracts
from quorate_node.chain.calls import ask
from quorate_node.chain.registration import rotate
from quorate_node.config import Config
from quorate_node.core import jury_duty
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import Execution
from quorate_node.core.provider_core import ProviderCore
from quorate_node.keys.operator_keys import KeyValidity, OperatorKeys
from quorate_node.keys.provider_keys import ProviderKeys, retire_operator
from quorate_node.messaging.announcements import Announcements
from quorate_node.messaging.coordinator_client import Coordinator
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds, UnixSeconds
from quorate_runtime.chain import ChainClient, Sender
from quorate_runtime.process.health import Board

CHANGING_SECONDS = 1.0
KEEPING_SECONDS = 30.0
UNANSWERED = (jury_duty.Waiting, jury_duty.Repeating, jury_duty.Voting)

_logger = logging.getLogger(__name__)


class Rotation:
    """One task of the daemon. It ends when there is only one operator key left."""

    def __init__(
        self,
        core: ProviderCore,
        ring: OperatorKeys,
        keys: ProviderKeys,
        client: ChainClient,
        contracts: Contracts,
        announcements: Announcements,
        coordinators: Mapping[Address, Coordinator],
        board: Board,
        config: Config,
        clock: Clock,
    ) -> None:
        self._core, self._ring, self._keys, self._client, self._contracts = (
            core,
            ring,
            keys,
            client,
            contracts,
        )
        self._announcements, self._coordinators, self._board, self._config, self._clock = (
            announcements,
            coordinators,
            board,
            config,
            clock,
        )
        self._told = ""

    async def run(self) -> None:
        """Looks until one key is left, or until cancelled. It waits while the chain is away."""
        while len(self._ring.signers) > 1:
            text = ""
            try:
                await self.look()
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, the owner may send coins. Told, because no
                # work is taken meanwhile.
                text = (
                    f"the operator key is to be changed: {error}" if self._ring.is_changing else ""
                )
            self._tell(text)
            is_settled = all(self._ring.may_take_work(address) for address in self._coordinators)
            await self._clock.sleep(KEEPING_SECONDS if is_settled else CHANGING_SECONDS)
        self._board.put("rotation")

    async def look(self) -> None:
        """Takes the next step. Unavailable or Refused when the chain does not allow it."""
        await self._learn()
        if self._ring.is_changing:
            await self._change()
        if not all(self._ring.may_take_work(address) for address in self._coordinators):
            await self._announcements.send_heartbeat(
                self._core.free_slots()
            )  # under the new key: who takes it has heard of it
        head = await self._client.head()
        moment = UnixSeconds(min(head.time, int(self._clock.now())))
        for key in unneeded(
            self._ring,
            self._core.live(),
            self._core.jury.values(),
            moment,
            self._core.terms.limits.offer_ttl,
        ):
            place = retire_operator(self._config.path("keys"), key)
            self._ring.forget(key)
            _logger.info(
                "operator key 0x%s is needed no more%s",
                key.hex(),
                f": it is in {place}" if place else "",
            )

    async def _learn(self) -> None:
        found = []
        for signer in self._ring.signers:
            since, until = await ask(
                self._client, self._contracts.stakes.key_range(self._keys.account, signer.address)
            )
            found.append(KeyValidity(signer.address, since, until))
        self._ring.learn(found)

    async def _change(self) -> None:
        if self._keys.owner is None:
            self._tell_owner()
            return
        head = await self._client.head()
        if any(item.assignment.message.accept_by >= head.time for item in self._core.live()):
            return  # accepted under the old key, and answered under it: this takes seconds
        owner = Sender(
            self._client,
            self._keys.owner,
            self._config.path("owner.sqlite"),
            self._clock,
            chain_id=self._contracts.deployment.chain_id,
        )
        try:
            await rotate(self._contracts, self._keys, owner)
        finally:
            owner.close()
        await self._learn()
        _logger.info("operator key 0x%s counts from now on", self._ring.current.address.hex())

    def _tell_owner(self) -> None:
        new, old = self._keys.operator.address.hex(), self._ring.current.address.hex()
        call = (
            f"with the key of 0x{self._keys.account.hex()} call rotate_key(0x{new}) of "
            f"0x{self._contracts.stakes.address.hex()}"
        )
        self._log(f"the chain does not know the new operator key: {call}; until then 0x{old} signs")

    def _tell(self, text: str) -> None:
        self._board.put("rotation", text)
        if text:
            self._log(text)

    def _log(self, text: str) -> None:
        if text != self._told:
            _logger.warning("%s", text)
        self._told = text


def unneeded(
    ring: OperatorKeys,
    live: Iterable[Execution],
    duties: Iterable[JuryDuty],
    moment: UnixSeconds,
    offer_ttl: Seconds,
) -> tuple[Address, ...]:
    """Older keys that nothing needs: no execution that has not ended, no ballot to be cast, no
    offer that has not expired. Pure.
    """
    today = ring.validity(ring.current.address)
    if ring.is_changing or today is None or moment <= today.since + offer_ttl:
        return ()
    if any(isinstance(duty.phase, UNANSWERED) for duty in duties):
        return ()
    needed = {
        ring.wanted.address,
        *(ring.valid_at(item.assignment.message.accept_by).address for item in live),
    }
    return tuple(signer.address for signer in ring.signers if signer.address not in needed)
