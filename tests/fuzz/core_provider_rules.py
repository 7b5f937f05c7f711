"""What providers can send to the core, for the fuzzing of the core."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fuzz.core_machine import (
    DIGESTS,
    FLAGS,
    FREE,
    PICK,
    SIGNED,
    SLOT_COUNTS,
    START_BY,
    U64,
    U128,
    BaseMachine,
)
from fuzz.core_world import DOMAIN, HOSTS
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept, Commit, Decline, FreeSlots, Heartbeat, Reveal
from quorate_protocol.units import (
    ZERO_ADDRESS,
    DeclineReason,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    Sequence,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.offers import MACHINE
from support.value_strategies import values_of


class ProviderRules(BaseMachine):
    """Answers, offers and heartbeats of any values, in any order."""

    @rule(pick=PICK, values=st.tuples(U64, U64, U64, U64), by=PICK, is_own=FLAGS)
    def accept(self, pick: int, values: tuple[int, ...], by: int, is_own: bool) -> None:
        lease = self.lease(pick)
        key = self.key_of(lease, by, is_own)
        fetch, run, store, time = values
        named = lease.assignment_hash if lease else Hash32(bytes(32))
        at = UnixSeconds(self.near(time))
        message = Accept(named, MACHINE.digest(), Seconds(fetch), Seconds(run), Seconds(store), at)
        self.world.send(ev.AcceptReceived(seal(DOMAIN, message, key.sign), key.address))

    @rule(
        pick=PICK,
        reason=st.sampled_from(list(DeclineReason)),
        start_by=START_BY,
        by=PICK,
        is_own=FLAGS,
    )
    def decline(
        self, pick: int, reason: DeclineReason, start_by: int, by: int, is_own: bool
    ) -> None:
        lease = self.lease(pick)
        key = self.key_of(lease, by, is_own)
        at = UnixSeconds(self.near(start_by) if start_by else 0)
        named = lease.assignment_hash if lease else Hash32(b"\x01" * 32)
        message = Decline(named, reason, at, UnixSeconds(self.world.at))
        self.world.send(ev.DeclineReceived(seal(DOMAIN, message, key.sign), key.address))

    @rule(
        pick=PICK,
        digest=DIGESTS,
        usage=U64,
        number=U64,
        by=PICK,
        flags=st.tuples(FLAGS, FLAGS, FLAGS),
    )
    def commit(
        self, pick: int, digest: Hash32, usage: int, number: int, by: int, flags: tuple[bool, ...]
    ) -> None:
        is_own, is_right_class, is_stored = flags
        lease = self.lease(pick)
        key = self.key_of(lease, by, is_own)
        message = Commit(
            assignment_hash=lease.assignment_hash if lease else digest,
            class_id=self.world.class_of(lease) if lease and is_right_class else digest,
            commitment=digest,
            encrypted_output=digest,
            usage_ms=Milliseconds(usage),
            beacon_round=Round(number),
        )
        self.world.send(ev.CommitReceived(seal(DOMAIN, message, key.sign), key.address, is_stored))

    @rule(
        steps=st.lists(st.text("acdr", min_size=1, max_size=5), min_size=1, max_size=6),
        lie=st.integers(0, 2),
    )
    def some_move_out_of_order(self, steps: list[str], lie: int) -> None:
        found = [lease for lease in self.world.leases()[-16:] if not lease.is_terminal]
        for lease, moves in zip(reversed(found), steps, strict=False):
            self.world.moves(lease, moves, lie)

    @rule(pick=PICK, is_deaf=FLAGS)
    def a_provider_goes_silent(self, pick: int, is_deaf: bool) -> None:
        owner = self.world.owners[pick % len(self.world.owners)].address
        (self.world.deaf if is_deaf else self.world.mute).symmetric_difference_update({owner})

    @rule(
        pick=PICK,
        status=st.sampled_from([0, 1, 512, 513, 65_535]),
        digest=DIGESTS,
        has_opened=FLAGS,
    )
    def reveal_anything(self, pick: int, status: int, digest: Hash32, has_opened: bool) -> None:
        lease = self.lease(pick)
        provider = lease.provider if lease else ZERO_ADDRESS
        message = Reveal(
            lease.assignment_hash if lease else digest, provider, ExitStatus(status), digest, digest
        )
        self.world.send(ev.RevealReceived(message, has_opened))

    @rule(lies=st.lists(st.integers(0, 2), min_size=8, max_size=8), usage=U64)
    def everybody_works(self, lies: list[int], usage: int) -> None:
        for number, lease in enumerate(self.world.leases()[-8:]):
            if isinstance(lease.phase, leases.Assigned | leases.Accepted):
                self.world.work(lease, lies[number], usage)

    @rule(count=st.integers(1, 12))
    def open_reveals(self, count: int) -> None:
        for lease in self.world.leases()[-12:][:count]:
            if isinstance(lease.phase, leases.Closed):
                for lie in range(3):
                    self.world.send(
                        ev.RevealReceived(self.world.reveal(lease, lie), has_opened=True)
                    )

    @rule(
        pick=PICK,
        seq=U64,
        prices=st.tuples(U128, U128, U128, U128),
        counts=SLOT_COUNTS,
        first=st.integers(0, 3),
    )
    def offer(
        self, pick: int, seq: int, prices: tuple[int, ...], counts: tuple[int, ...], first: int
    ) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        self.world.offer(owner, seq, prices, counts, HOSTS[first:] + HOSTS[:first])

    @rule(
        pick=PICK,
        more=st.sampled_from([1, 2, 5]),
        price=st.sampled_from([1, 80_000, 100_000]),
        count=st.sampled_from([1, 2, 255]),
    )
    def reprice(self, pick: int, more: int, price: int, count: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        known = self.world.core.state.providers[owner.address].offer
        seq = min(2**64 - 1, (known.seq if known else 0) + more)
        self.world.offer(owner, seq, (price,) * 3, (count,) * 3, HOSTS[:3])

    @rule(pick=PICK, seq=U64, offset=st.sampled_from([-61, 0, 60, 2**40]), free=FREE)
    def heartbeat(self, pick: int, seq: int, offset: int, free: list[FreeSlots]) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        message = Heartbeat(
            owner.address,
            Sequence(seq),
            tuple(free),
            self.world.progress(owner) if pick % 2 else (),
            UnixSeconds(max(0, self.world.at + offset)),
        )
        self.world.send(
            ev.HeartbeatReceived(seal(DOMAIN, message, owner.key.sign), owner.key.address)
        )

    @rule(data=st.data())
    def anything_signed(self, data: st.DataObject) -> None:
        """Messages of any values at all, signed by a registered key."""
        kind = data.draw(st.sampled_from(SIGNED))
        event = data.draw(values_of(kind))
        key = self.world.owners[0].key.address
        self.world.send(replace(event, key=key) if hasattr(event, "key") else event)
