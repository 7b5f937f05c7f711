"""The provider daemon changes its operator key while a job runs.

The coordinator takes only signatures that the chain's registry allows.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.calls import ask
from quorate_node.base.operator_keys import FILE
from quorate_node.core.phases import Declined, Running
from quorate_node.daemon import ProviderDaemon
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.signed import Commit
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.scripted_coordinator import (
    OPERATOR,
    OWNER,
    SPEC,
    Stage,
    in_phase,
    running,
    stage,
    until,
)

NEW = KeySigner(b"\x21" * 32)
RUN_MILLISECONDS = 2500  # longer than the first daemon lives


@dataclass
class Registry:
    """How a coordinator checks signatures: a lease's by the registry at its acceptBy, others by the
    key it knows.
    """

    market: Stage
    accept_by: dict[Hash32, UnixSeconds] = field(default_factory=dict)
    signed_by: dict[Hash32, set[Address]] = field(
        default_factory=dict
    )  # leases and the keys that signed for them

    async def check(self, frame: frames.Frame) -> None:
        domain, stakes = self.market.contracts.deployment.domain(), self.market.contracts.stakes
        match frame:
            case (
                frames.AcceptSent(envelope)
                | frames.CommitSent(envelope)
                | frames.DeclineSent(envelope)
            ):
                key, lease = signer(domain, envelope, recover), envelope.message.assignment_hash
                if not await ask(
                    self.market.client, stakes.key_valid(OWNER.address, key, self.accept_by[lease])
                ):
                    raise Refused(Code.WRONG_SIGNER, "no operator key at the assignment's acceptBy")
                self.signed_by.setdefault(lease, set()).add(key)
            case frames.OfferSent():
                self._check_today(signer(domain, frame.offer.signature, recover))
            case frames.HeartbeatSent():
                self._check_today(signer(domain, frame.heartbeat, recover))
            case _:
                pass

    def _check_today(self, key: Address) -> None:
        if key != self.market.coordinator.operator:
            raise Refused(Code.WRONG_SIGNER, "another operator key is known")

    async def assign(self, daemon: ProviderDaemon, number: int) -> Hash32:
        """Sends an assignment to be answered within two seconds of the chain's time; returns its
        hash.
        """
        coordinator = self.market.coordinator
        assert daemon.core is not None
        sent = coordinator.assignment(SPEC, number, daemon.core.terms.slots[0].pool.id())
        message = replace(
            sent.assignment.message,
            accept_by=UnixSeconds((await self.market.client.head()).time + 2),
        )
        lease: Hash32 = coordinator.hash(message)
        self.accept_by[lease] = message.accept_by
        await coordinator.send(replace(sent, assignment=coordinator.seal(message)))
        return lease

    async def committed(self, lease: Hash32) -> set[Address]:
        """Waits for a lease's Commit. Returns the keys that signed for the lease."""
        coordinator = self.market.coordinator

        def commit() -> Commit | None:
            found = (item.commit.message for item in coordinator.got(frames.CommitSent))
            return next((item for item in found if item.assignment_hash == lease), None)

        await until(commit)
        return self.signed_by[lease]


async def test_all_messages_of_a_lease_are_signed_by_the_key_that_accepted_it(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as market:
        coordinator, stakes = market.coordinator, market.contracts.stakes
        registry = Registry(market)
        coordinator.rule = registry.check
        keys = dataclasses.replace(market.keys(), operator=NEW, past=(OPERATOR,))
        async with running(market, market.daemon(coordinator.url, RUN_MILLISECONDS)) as daemon:
            old = await registry.assign(daemon, 1)
            await in_phase(daemon, old, Running)
        async with running(
            market, market.daemon(coordinator.url, RUN_MILLISECONDS, keys=keys)
        ) as daemon:
            meanwhile = await registry.assign(daemon, 2)
            await in_phase(daemon, meanwhile, Declined)
            async with market.fast():
                while await ask(market.client, stakes.operator_key(OWNER.address)) != NEW.address:
                    pass  # each turn asks the chain; the test's own limit ends it
            coordinator.frames.clear()  # only what is sent after it counts
            registry.signed_by.clear()
            assert await registry.committed(old) == {OPERATOR.address}, (
                "a rotated key answers for what it accepted"
            )
            coordinator.operator = NEW.address  # it has followed the chain
        (market.home / FILE).unlink()  # a crash before the daemon had learnt of it
        coordinator.frames.clear()
        async with running(market, market.daemon(coordinator.url, keys=keys)) as daemon:
            await until(lambda: coordinator.got(frames.OfferSent) or None)
            await until(lambda: coordinator.got(frames.HeartbeatSent) or None)
            new = await registry.assign(daemon, 3)
            assert await registry.committed(new) == {NEW.address}
