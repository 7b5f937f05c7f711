"""What clients can send to the core, for the fuzzing of the core."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fuzz.core_machine import DIGESTS, FLAGS, PICK, U64, U128, WHO, BaseMachine
from fuzz.core_world import COORDINATOR, DOMAIN
from quorate_coordinator.core.model import events as ev
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Session, Stop, Voucher, Witness
from quorate_protocol.units import (
    Amount,
    Bps,
    Hash32,
    Nonce,
    Price,
    Round,
    Seconds,
    Small,
    UnixSeconds,
    VerifyTier,
)


class ClientRules(BaseMachine):
    """Orders, sessions, vouchers, stops and witnesses of any values."""

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
            "pool": host,
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
            "pool": host,
            "nonce": Nonce(nonce),
        }
        self.world.order(who, nonce, changes, {})

    @rule(
        who=WHO,
        cumulative=U128,
        below=st.sampled_from([-1, 0, 1]),
        is_near=FLAGS,
        key=st.integers(0, 2),
    )
    def voucher(self, who: int, cumulative: int, below: int, is_near: bool, key: int) -> None:
        world = self.world
        account = world.clients[who].address
        client = world.core.state.clients.get(account)  # None once nothing is left of it
        charged = client.charged if client else 0
        amount = max(0, charged - below) if is_near else cumulative
        signer = [*world.sessions, world.clients[who]][key]
        message = Voucher(account, COORDINATOR.address, Amount(amount))
        world.send(ev.VoucherReceived(seal(DOMAIN, message, signer.sign), signer.address))

    @rule(who=WHO, up_to=U128, expires=U64)
    def session(self, who: int, up_to: int, expires: int) -> None:
        client, key = self.world.clients[who], self.world.sessions[1 - who]
        message = Session(
            client.address, key.address, COORDINATOR.address, Amount(up_to), UnixSeconds(expires)
        )
        self.world.send(ev.SessionReceived(seal(DOMAIN, message, client.sign)))

    @rule(who=WHO, amount=U128)
    def give_back(self, who: int, amount: int) -> None:
        self.world.send(ev.GiveBackAsked(self.world.clients[who].address, Amount(amount)))

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
        job = self.world.core.state.jobs.get(job_id) if job_id else None
        acked = job.ack.digest(DOMAIN) if job else Hash32(bytes(32))
        message = Witness(commit_hash, acked, Round(wanted), UnixSeconds(self.world.at))
        self.world.send(ev.WitnessReceived(seal(DOMAIN, message, key.sign), key.address))
