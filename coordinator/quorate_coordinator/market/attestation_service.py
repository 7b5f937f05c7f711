"""The coordinator's part in attestation: challenges, its own verification, and rechecks."""

import asyncio
from collections.abc import Awaitable, Callable

from quorate_attestation import session_messages
from quorate_attestation.claims import standard_sizes
from quorate_attestation.session_messages import AttestationAsked
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.document_fetch import document_fetch
from quorate_contracts.calls import view
from quorate_contracts.deploy import Contracts
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.market.challenges import Challenges
from quorate_coordinator.market.record_checker import RecordChecker
from quorate_protocol.messages.ports import Beacon, Clock, Peers
from quorate_protocol.units import ZERO_ADDRESS, Address
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.peers.verifications import Standard, Verifications, Verifier

STORE_OWNER = "attestation"


class AttestationService:
    """Takes the messages of challenges. `run` owns all tasks."""

    def __init__(
        self,
        core: CoordinatorCore,
        peers: Peers,
        beacon: Beacon,
        store: ContentStore,
        submit: Callable[[ev.Event], Awaitable[object]],
        key_of_coordinator: Callable[[Address], Awaitable[Address]],
        clock: Clock,
        standard: Standard = standard_sizes,
    ) -> None:
        """`standard` gives the sizes of a claim's challenge."""
        rules = core.rules
        me = Verifier(rules.coordinator, rules.domain, rules.limits, beacon.info, clock, standard)
        fetch = document_fetch(store, STORE_OWNER, rules.limits.name == "devnet")
        self._challenges = Challenges(core, peers, beacon, me)
        self._own = Verifications(me, rules.sign, self._challenges.send_own, fetch)
        self._challenges.bind(self._own)
        self._checker = RecordChecker(core.state, rules, me, submit, fetch, key_of_coordinator)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run(), name="own verifications")
            group.create_task(self._checker.run(), name="attestation checks")

    async def take(
        self, sender: str, body: bytes, unasked: Callable[[str], None] = lambda sender: None
    ) -> None:
        """`unasked` counts requests for a challenge. Raises Refused or Unavailable."""
        message = session_messages.decode(body)
        if isinstance(message, AttestationAsked):
            unasked(sender)
        await self._challenges.take(Address(bytes.fromhex(sender.removeprefix("0x"))), message)


async def coordinator_key(client: ChainClient, contracts: Contracts, account: Address) -> Address:
    """By the chain; the zero address if it is not bonded."""
    stakes = contracts.stakes
    if not await view(client, stakes.bond_of(account)):
        return ZERO_ADDRESS
    return await view(client, stakes.operator_key(account))
