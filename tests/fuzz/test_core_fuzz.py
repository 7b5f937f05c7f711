"""The coordinator's core against signed nonsense: providers, clients and the chain's own turns
in any order, with values at every edge.

Anything raised but `Refused` fails: in the running coordinator it would end the process.
`QUORATE_FUZZ` multiplies the examples; `QUORATE_FUZZ_SHRINK=1` makes a failing one small, which
takes minutes.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from fuzz.core_world import COORDINATOR, DOMAIN, HOSTS, World
from quorate_coordinator.core import events as ev
from quorate_coordinator.core import lease as leases
from quorate_coordinator.core import queries
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import (
    Accept,
    Commit,
    Decline,
    FreeSlots,
    Heartbeat,
    Reveal,
    Session,
    Stop,
    Voucher,
    Witness,
)
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Amount,
    BlockNumber,
    Bps,
    DeclineReason,
    ExitStatus,
    Hash32,
    Milliseconds,
    Nonce,
    Price,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.fuzz_properties import COUNTS, EDGES
from support.value_strategies import values_of

EFFORT = int(os.environ.get("QUORATE_FUZZ", "1"))
PICK = st.integers(0, 2**16)
U64 = st.sampled_from([value for value in EDGES if value < 2**64])
U128 = st.sampled_from([value for value in EDGES if value < 2**128]) | st.integers(0, 10**9)
SPAN = st.sampled_from([0, 1, 2, 3, 6, 21, 61, 130, 700, 5_000, 90_000, 400_000])
FLAGS = st.booleans()
DIGESTS = st.sampled_from([Hash32(bytes(32)), Hash32(b"\xff" * 32), *(host.id() for host in HOSTS)])


WHO = st.integers(0, 1)
START_BY = st.sampled_from([0, 1, 5, 19, 21, 600, 2**64 - 1])
SLOT_COUNTS = st.tuples(*[st.sampled_from([0, 1, 3, 255])] * 4)
FREE = st.lists(st.builds(FreeSlots, DIGESTS, st.sampled_from([Small(0), Small(255)])), max_size=5)
SIGNED = [
    ev.AcceptReceived,
    ev.DeclineReceived,
    ev.CommitReceived,
    ev.HeartbeatReceived,
    ev.RevealReceived,
]
LIES = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=6)


class CoreMachine(RuleBasedStateMachine):
    """Every rule is one thing that somebody can make happen."""

    limits, owner_count = DEVNET, 5

    def __init__(self) -> None:
        super().__init__()
        COUNTS["core_worlds"] += 1
        self.world = World(self.limits, self.owner_count)

    def lease(self, pick: int) -> leases.Lease | None:
        """One of the newer leases."""
        found = self.world.leases()[-12:]
        return found[pick % len(found)] if found else None

    def near(self, value: int) -> int:
        """Small values are offsets to the present, others stand as they are."""
        return self.world.at + value if value < 10**6 else value

    # ---- an ordinary day

    @initialize()
    def begin(self) -> None:
        for nonce in range(3):
            self.order(
                nonce % 2, 600 + nonce, 200_000, 7, VerifyTier.STANDARD, False, Hash32(bytes(32))
            )

    @rule(lies=LIES, usage=st.sampled_from([0, 1, 36_000, 60_000]), turns=st.integers(1, 4))
    def market_goes_on(self, lies: list[int], usage: int, turns: int) -> None:
        self.world.market_goes_on(lies, usage, turns)

    @rule(lies=LIES, usage=U64, turns=st.integers(5, 12), nonce=st.integers(1_000, 10**6))
    def market_goes_on_for_long(self, lies: list[int], usage: int, turns: int, nonce: int) -> None:
        self.order(nonce % 2, nonce, 200_000, 7, VerifyTier.LEAN, True, Hash32(bytes(32)))
        self.world.market_goes_on(lies, usage, turns)

    @rule()
    def everybody_is_well(self) -> None:
        self.world.everybody_is_well()

    # ---- clients

    @rule(
        who=WHO,
        price=U128,
        budget=U128,
        count=st.sampled_from([0, 1, 2, 3, 7, 255]),
        tier=st.sampled_from(list(VerifyTier)),
        duration=st.sampled_from([0, 1, 60, 10**6, 30 * 86_400, 2**63]),
        flags=st.tuples(FLAGS, FLAGS, FLAGS),
        host=DIGESTS,
        nonce=U64,
        bps=st.sampled_from([0, 199, 200, 2_000, 10_000, 65_535]),
    )
    def order_anything(
        self,
        who: int,
        price: int,
        budget: int,
        count: int,
        tier: VerifyTier,
        duration: int,
        flags: tuple[bool, ...],
        host: Hash32,
        nonce: int,
        bps: int,
    ) -> None:
        unwitnessed, unverified, caseable = flags
        changes: dict[str, object] = {
            "max_price_per_hour": Price(price),
            "budget": Amount(budget),
            "max_executions": Small(count),
            "verify_tier": tier,
            "accept_unwitnessed": unwitnessed,
            "accept_unverified": unverified,
            "caseable": caseable,
            "host_class": host,
            "nonce": Nonce(nonce),
            "max_fee_bps": Bps(bps),
            "audit_premium_bps": Bps(bps),
        }
        self.world.order(who, nonce, changes, {"max_duration": Seconds(duration)})

    @rule(
        who=WHO,
        nonce=st.integers(1, 500),
        price=st.sampled_from([80_000, 95_000, 200_000]),
        count=st.integers(2, 7),
        tier=st.sampled_from([VerifyTier.LEAN, VerifyTier.STANDARD, VerifyTier.CRITICAL]),
        unwitnessed=FLAGS,
        host=DIGESTS,
    )
    def order(
        self,
        who: int,
        nonce: int,
        price: int,
        count: int,
        tier: VerifyTier,
        unwitnessed: bool,
        host: Hash32,
    ) -> None:
        changes: dict[str, object] = {
            "max_price_per_hour": Price(price),
            "max_executions": Small(count),
            "verify_tier": tier,
            "accept_unwitnessed": unwitnessed,
            "host_class": host,
            "nonce": Nonce(nonce),
        }
        self.world.order(who, nonce, changes, {})

    @rule(
        who=WHO,
        cumulative=U128,
        below=st.sampled_from([-1, 0, 1]),
        is_near=FLAGS,
        floor=U128,
        key=st.integers(0, 2),
    )
    def voucher(
        self, who: int, cumulative: int, below: int, is_near: bool, floor: int, key: int
    ) -> None:
        world = self.world
        client = world.core.state.clients[world.clients[who].address]
        amount = max(0, client.charged - below) if is_near else cumulative
        signer = [*world.sessions, world.clients[who]][key]
        message = Voucher(client.account, COORDINATOR.address, Amount(amount), Nonce(floor))
        world.send(ev.VoucherReceived(seal(DOMAIN, message, signer.sign), signer.address))

    @rule(who=WHO, up_to=U128, expires=U64)
    def session(self, who: int, up_to: int, expires: int) -> None:
        client, key = self.world.clients[who], self.world.sessions[1 - who]
        message = Session(
            client.address, key.address, COORDINATOR.address, Amount(up_to), UnixSeconds(expires)
        )
        self.world.send(ev.SessionReceived(seal(DOMAIN, message, client.sign)))

    @rule(pick=PICK, who=WHO, time=U64)
    def stop(self, pick: int, who: int, time: int) -> None:
        found = self.world.jobs()
        job_id = found[pick % len(found)].id if found else Hash32(bytes(32))
        key = self.world.sessions[who]
        self.world.send(
            ev.StopReceived(seal(DOMAIN, Stop(job_id, UnixSeconds(time)), key.sign), key.address)
        )

    @rule(pick=PICK, who=WHO, number=U64, is_right=FLAGS)
    def witness(self, pick: int, who: int, number: int, is_right: bool) -> None:
        known = list(self.world.core.state.commits.items())
        commit_hash, job_id = known[pick % len(known)] if known else (Hash32(bytes(32)), None)
        phase = self.world.core.state.jobs[job_id].phase if job_id else None
        wanted = getattr(phase, "round", number) if is_right else number
        key = self.world.sessions[who]
        message = Witness(commit_hash, Round(wanted), UnixSeconds(self.world.at))
        self.world.send(ev.WitnessReceived(seal(DOMAIN, message, key.sign), key.address))

    # ---- providers

    @rule(pick=PICK, values=st.tuples(U64, U64, U64, U64), by=PICK, is_own=FLAGS)
    def accept(self, pick: int, values: tuple[int, ...], by: int, is_own: bool) -> None:
        lease = self.lease(pick)
        key = self.key_of(lease, by, is_own)
        fetch, run, store, time = values
        named = lease.assignment_hash if lease else Hash32(bytes(32))
        at = UnixSeconds(self.near(time))
        message = Accept(named, Seconds(fetch), Seconds(run), Seconds(store), at)
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
            class_id=lease.class_id if lease and is_right_class else digest,
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
            owner.address, Sequence(seq), tuple(free), UnixSeconds(max(0, self.world.at + offset))
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

    # ---- chain, beacon, time

    @rule(seconds=SPAN)
    def time_passes(self, seconds: int) -> None:
        self.world.beat(seconds)

    @rule(salt=PICK)
    def rounds_appear(self, salt: int) -> None:
        self.world.rounds(salt)

    @rule(number=U64)
    def a_round_nobody_waits_for(self, number: int) -> None:
        self.world.send(ev.RoundAppeared(Round(number), b"", b"\x01" * 32))

    @rule(pick=PICK)
    def key_rotates(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        owner.old_keys.append(owner.key)
        owner.key = KeySigner(bytes([1 + pick % 200, 1 + len(owner.old_keys) % 200]) * 16)
        rotated = ev.ChainKeyRotated(owner.address, owner.key.address, UnixSeconds(self.world.at))
        self.world.notes(rotated, ev.ChainPayoutChanged(owner.address, owner.key.address))

    @rule(pick=PICK, host=st.integers(0, 2), later=st.sampled_from([0, 1, 100]))
    def slot_closes(self, pick: int, host: int, later: int) -> None:
        index = pick % len(self.world.owners)
        self.world.notes(
            ev.ChainSlotClosed(HOSTS[host].id(), index, BlockNumber(self.world.block + later))
        )

    @rule(pick=PICK, host=st.integers(0, 2), more=st.integers(0, 2))
    def slot_opens(self, pick: int, host: int, more: int) -> None:
        index = pick % len(self.world.owners)
        self.world.notes(
            ev.ChainSlotOpened(
                HOSTS[host].id(),
                index + more,
                self.world.owners[index].address,
                BlockNumber(self.world.block),
            )
        )

    @rule(pick=PICK)
    def slashed(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        self.world.notes(
            ev.ChainProviderSlashed(owner.address, Amount(1), BlockNumber(self.world.block))
        )

    @rule(who=WHO, amount=U128)
    def allocation_changes(self, who: int, amount: int) -> None:
        self.world.notes(ev.ChainAllocationChanged(self.world.clients[who].address, Amount(amount)))

    @rule(pick=PICK)
    def case_opens(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        number = len(self.world.cases) + 1
        self.world.cases.append((number, owner.address))
        self.world.notes(
            ev.ChainCaseOpened(Nonce(number), owner.address, ()),
            ev.ChainJuryDrawn(Nonce(number), ()),
        )

    @rule(pick=PICK, is_convicted=FLAGS)
    def case_ends(self, pick: int, is_convicted: bool) -> None:
        number = self.world.cases[pick % len(self.world.cases)][0] if self.world.cases else 99
        self.world.notes(ev.ChainCaseDecided(Nonce(number), is_convicted, Amount(1)))

    @rule(pick=PICK, is_posted=FLAGS)
    def transaction_ends(self, pick: int, is_posted: bool) -> None:
        purposes = self.world.purposes or ["epoch-7-7", "case-ff-00"]
        purpose = purposes[pick % len(purposes)]
        if is_posted and purpose.startswith("epoch-"):
            self.world.notes(ev.ChainEpochPosted(int(purpose.split("-")[1]), Hash32(bytes(32))))
        else:
            self.world.send(ev.TransactionRefused(purpose, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 500))

    @rule(back=st.integers(0, 70))
    def reorganised(self, back: int) -> None:
        self.world.send(ev.ChainReorganised(BlockNumber(max(0, self.world.block - back))))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(is_client=FLAGS, price=U128, pick=PICK)
    def look(self, is_client: bool, price: int, pick: int) -> None:
        """Every view there is."""
        state, rules, at = self.world.core.state, self.world.core.rules, UnixSeconds(self.world.at)
        for job in self.world.jobs()[-4:]:
            queries.run_view(state, job, is_client)
            queries.plan_view(state, rules, at, job.submission.spec, Price(price), is_client)
        queries.offer_views(
            state, at, 1 + pick % 8, self.world.owners[pick % len(self.world.owners)].address
        )
        queries.case_views(state)
        for owner in self.world.owners:
            queries.provider_view(state, owner.address, at)
            queries.account_view(state, owner.address)
        for client in self.world.clients:
            queries.account_view(state, client.address)

    def key_of(self, lease: leases.Lease | None, by: int, is_own: bool) -> KeySigner:
        """The right key, or anybody's."""
        if lease is not None and is_own:
            return self.world.owner_of(lease).key
        owner = self.world.owners[by % len(self.world.owners)]
        return (owner.old_keys or [owner.key])[0]


class AdaptiveMachine(CoreMachine):
    """Enough owners, and mainnet's limits, for the adaptive rule: holding, the fund, rates."""

    limits, owner_count = MAINNET, 9


def run(machine: type[CoreMachine], examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = [
        Phase.reuse,
        Phase.generate,
        *([Phase.shrink] if "QUORATE_FUZZ_SHRINK" in os.environ else []),
    ]
    wanted = settings(
        max_examples=examples * EFFORT,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=checks,
        phases=phases,
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=wanted)  # type: ignore[no-untyped-call]


@pytest.mark.rule("3.9")
def test_no_signed_nonsense_breaks_the_core() -> None:
    run(CoreMachine, 25)


def test_no_signed_nonsense_breaks_the_core_under_the_adaptive_rule() -> None:
    run(AdaptiveMachine, 25)


def test_a_rule_taken_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a Commit taken without an Accept, a receipt would look for an Accept that never was:
    the machine has to get that far.
    """
    strict = leases._commit

    def lenient(
        lease: leases.Lease, commit: Envelope[Commit], at: UnixSeconds
    ) -> tuple[leases.Lease, tuple[leases.Effect, ...]]:
        if isinstance(lease.phase, leases.Assigned) and commit.message.class_id == lease.class_id:
            return leases._to(lease, leases.Committed(commit, at), leases.Effect.SLOT_FREED)
        return strict(lease, commit, at)

    monkeypatch.setattr(leases, "_commit", lenient)
    with pytest.raises(KeyError):
        run(CoreMachine, 500)
