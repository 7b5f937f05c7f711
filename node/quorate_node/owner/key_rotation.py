"""Changes from one operator key to the next while jobs run.

The daemon registers the new key on chain, and removes the old one when nothing needs it. It may
crash after any step, because only the keystore and the chain hold the state. It registers a key
that is newer than the chain's, and keeps an older one until nothing needs it.

One key signs all messages of a lease: the key that is valid at its acceptBy. So a daemon that
starts with a new key takes no work until the chain has that key (`OperatorKeys.may_take_work`). It
registers the new key when no acceptBy lies in the future.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_node.base.config import Config
from quorate_node.base.operator_keys import KeyValidity, OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys, retire_operator
from quorate_node.core import jury_duty
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import Execution
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.owner.registration import rotate
from quorate_node.owner.senders import owner_sender
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds, UnixSeconds
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.health import Board

CHANGING_SECONDS = 1.0
KEEPING_SECONDS = 30.0
UNANSWERED = (jury_duty.Waiting, jury_duty.Repeating, jury_duty.Voting)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rotation:
    """The task of the daemon that changes the operator key. It ends when only one key is left."""

    core: ProviderCore
    ring: OperatorKeys
    keys: ProviderKeys
    client: ChainClient
    contracts: Contracts
    announcements: Announcements
    coordinators: Mapping[Address, Coordinator]
    board: Board
    config: Config
    clock: Clock
    _told: str = ""

    async def run(self) -> None:
        """Calls `look` until one key is left, or until cancelled.

        It waits while the chain node does not answer.
        """
        while len(self.ring.signers) > 1:
            text = ""
            try:
                await self.look()
            except (Unavailable, Refused) as error:
                # Not re-raised: the chain may come back, or the owner may send coins. The owner is
                # told, because the node takes no work until then.
                text = (
                    f"the operator key cannot be changed yet: {error}"
                    if self.ring.is_changing
                    else ""
                )
            self._tell(text)
            is_settled = all(self.ring.may_take_work(address) for address in self.coordinators)
            await self.clock.sleep(KEEPING_SECONDS if is_settled else CHANGING_SECONDS)
        self.board.put("rotation")

    async def look(self) -> None:
        """Raises Unavailable without a chain node, Refused if a contract refuses."""
        await self._learn()
        if self.ring.is_changing:
            await self._change()
        if not all(self.ring.may_take_work(address) for address in self.coordinators):
            # The new key signs it. A coordinator that takes it has read the new key from the chain.
            await self.announcements.send_heartbeat(self.core.free_slots())
        head = await self.client.head()
        moment = UnixSeconds(min(head.time, int(self.clock.now())))
        for key in unneeded_keys(
            self.ring,
            self.core.live(),
            self.core.jury.values(),
            moment,
            self.core.terms.limits.offer_ttl,
        ):
            place = retire_operator(self.config.path("keys"), key)
            self.ring.forget(key)
            log.info(
                "nothing needs operator key 0x%s any more%s",
                key.hex(),
                f"; its file is now {place}" if place else "",
            )

    async def _learn(self) -> None:
        found = []
        for signer in self.ring.signers:
            since, until = await ask(
                self.client, self.contracts.stakes.key_range(self.keys.account, signer.address)
            )
            validity = KeyValidity(signer.address, UnixSeconds(since), UnixSeconds(until))
            found.append(validity)
        self.ring.learn(found)

    async def _change(self) -> None:
        if self.keys.owner is None:
            self._tell_owner()
            return
        head = await self.client.head()
        if any(item.assignment.message.accept_by >= head.time for item in self.core.live()):
            return  # the old key accepts and answers these leases; wait some seconds
        home, deployment = self.config.home, self.contracts.deployment
        with owner_sender(home, self.client, self.keys.owner, self.clock, deployment) as sender:
            await rotate(self.contracts, self.keys, sender)
        await self._learn()
        log.info("operator key 0x%s is valid from now on", self.ring.current.address.hex())

    def _tell_owner(self) -> None:
        new, old = self.keys.operator.address.hex(), self.ring.current.address.hex()
        call = (
            f"with the key of 0x{self.keys.account.hex()} call rotate_key(0x{new}) of "
            f"0x{self.contracts.stakes.address.hex()}"
        )
        self._log(f"the chain does not know the new operator key: {call}; until then 0x{old} signs")

    def _tell(self, text: str) -> None:
        self.board.put("rotation", text)
        if text:
            self._log(text)

    def _log(self, text: str) -> None:
        if text != self._told:
            log.warning("%s", text)
        self._told = text


def unneeded_keys(
    ring: OperatorKeys,
    live: Iterable[Execution],
    duties: Iterable[JuryDuty],
    moment: UnixSeconds,
    offer_ttl: Seconds,
) -> tuple[Address, ...]:
    """Needed: by a live execution, a vote or reveal, an offer that has not expired. Pure."""
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
