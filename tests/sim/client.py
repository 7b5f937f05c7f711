"""A simulated client: orders, witnesses, sometimes stops, and signs vouchers.

It is slow or offline now and then. It signs no more than it can check, and its lead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Order, Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import AccountView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import settlement
from quorate_protocol.rules.money import credit
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Amount,
    Bps,
    Comparator,
    Hash32,
    Label,
    Nonce,
    Price,
    PriceTier,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from sim import workload
from sim.archived_rows import PollAnswer
from sim.chain import Chain
from sim.clock import Clock, clock_of
from sim.network import Answer, Network
from sim.parties import DOMAIN, key
from sim.plan import PAYS_LATE_SECONDS, JobPlan, Market, Plan, Release
from sim.schedule import Schedule

SEND_SECONDS = 3.0
LEAD = 20_000  # millionths that a client signs ahead; boasters' jobs need more
LONG_LEAD = 10_000_000
EXPIRY_SECONDS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """The coordinator's API, as a client reaches it."""

    take_order: Callable[[Submission], object]
    take_session: Callable[[Envelope[Session]], object]
    take_signed: Callable[[Envelope[Witness] | Envelope[Voucher] | Envelope[Stop]], object]
    read_logs: Callable[[Hash32], object]
    look: Callable[[bytes, int], PollAnswer]


@dataclass(slots=True)
class Client:
    """One client. `ended` and `acked` are what the coordinator told it."""

    number: int
    plan: Plan
    schedule: Schedule
    network: Network
    api: Api
    random: Random = field(init=False)
    clock: Clock = field(init=False)
    account: KeySigner = field(init=False)
    session_key: KeySigner = field(init=False)
    name: str = field(init=False)
    seq: Sequence = Sequence(0)
    acked: dict[Hash32, JobSpec] = field(default_factory=dict)
    ack_hashes: dict[Hash32, Hash32] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    refused_jobs: set[Hash32] = field(default_factory=set)
    submissions: list[Submission] = field(default_factory=list)
    stopped: dict[Hash32, int] = field(default_factory=dict)  # job -> when the Stop was taken
    vouchers: list[Envelope[Voucher]] = field(default_factory=list)
    signed: Amount = Amount(0)  # the sum of its newest voucher
    reserved: dict[Hash32, int] = field(default_factory=dict)  # by orders that are not over
    served: dict[Hash32, int] = field(default_factory=dict)  # charges of outputs that it may read
    taken_voucher: Amount = Amount(0)
    square_for: int = 0  # seconds since it owes nothing
    is_calm: bool = False
    seen: AccountView | None = None  # its account when it last looked
    under_way: int = 0  # orders without an answer
    leaves: Callable[[], object] = lambda: None  # announces its release again if it is not finished
    is_withholding: bool = False  # signs no vouchers for now

    def __post_init__(self) -> None:
        self.name = f"client-{self.number}"
        self.random, self.clock = (
            self.plan.stream(self.name),
            clock_of(self.name, self.schedule, self.plan.clocks),
        )
        self.account, self.session_key = key("client", self.number), key("session", self.number)

    def start(self) -> None:
        """Plans its orders and starts to poll."""
        for job in self.plan.jobs:
            if job.client == self.number:
                self.schedule.after(job.at, partial(self._order_one, job))
        self.schedule.after(1, self._look)

    # --------------------------------------------------------------------------------------- orders

    @property
    def lead(self) -> int:
        """How far its vouchers run ahead of what it has seen charged."""
        return LONG_LEAD if self.plan.has_boasters else LEAD

    @property
    def is_silent(self) -> bool:
        """Whether it signs no vouchers now."""
        never = self.plan.never_vouches and self.number == 1 and not self.is_calm
        return self.is_withholding or never

    def _order_one(self, job: JobPlan) -> None:
        random = self.plan.stream(f"order/{job.client}/{job.number}")
        spec = workload.make_spec(
            random,
            f"job-{job.client}-{job.number}",
            is_long=self.plan.has_boasters,
            has_gpus=self.plan.has_gpus,
        )
        if self.plan.has_absent_inputs and self.number == 1:
            spec = replace(spec, gateways=(workload.EMPTY_GATEWAY,), start_within=Seconds(30))
        if self.plan.has_coin_flips and self.number == 1:
            spec = workload.toss_coins(spec)
        if self.plan.stream(f"public/{job.client}/{job.number}").random() < 0.15:
            spec = replace(spec, public=True)
        order = self.order(spec, random, nonce=Nonce(job.number))
        most = settlement.charge_limit(order, Label.QUORUM_2, order.max_fee_bps)
        if self.seen is None or sum(self.reserved.values()) + most > self.lead:
            if not self.is_calm:
                self.schedule.after(1, partial(self._order_one, job))
            return
        submission = self.submission(spec, order)
        self.submissions.append(submission)
        self.reserved[submission.order.digest(DOMAIN)] = most
        self.under_way += 1
        self._prepay(submission, job.stop_after)

    def _prepay(self, submission: Submission, stop_after: float | None) -> None:
        """Sends the session, then a voucher that covers the order, then the order."""
        if self.is_silent:
            self._submit(submission, stop_after)
            return

        def then(answer: Answer) -> None:
            self._vouch(lambda: self._submit(submission, stop_after))

        self.network.request(
            self.name,
            "coordinator",
            lambda: self.api.take_session(submission.session),
            then,
            SEND_SECONDS,
        )

    def order(self, spec: JobSpec, random: Random, **changes: object) -> Order:
        """Sends an order for a spec; `changes` make it invalid."""
        tiers = [VerifyTier.LEAN, VerifyTier.STANDARD, VerifyTier.CRITICAL]
        # in this market results may stay unaudited
        is_held_likely = self.plan.market is Market.LARGE
        tier = random.choices(tiers, [6, 6, 1] if is_held_likely else [1, 1, 1])[0]
        price, executions = random.choice([120_000, 200_000]), random.choice([2, 3, 3, 5, 7])
        three = 3 * (price * spec.max_duration // 3_600)
        fields: dict[str, object] = {
            "client": self.account.address,
            "coordinator": key("coordinator").address,
            "spec_hash": spec.digest(),
            "input_root": ZERO_HASH,
            "terms_hash": OrderTerms().digest(),
            "price_tier": PriceTier.ON_DEMAND,
            "max_price_per_hour": Price(price),
            # Sometimes exactly what three executions can cost, with the fee.
            "budget": Amount(1_000_000 if random.random() < 0.6 else three + three // 50),
            "max_duration": spec.max_duration,
            "max_executions": Small(executions),
            "audit_premium_bps": Bps(500),
            "max_fee_bps": Bps(500),
            "verify_tier": tier,
            "comparator": Comparator.EXACT,
            "caseable": True,
            "host_class": ZERO_HASH,
            "witness": ZERO_ADDRESS,
            "accept_unwitnessed": random.random() < (0.9 if is_held_likely else 0.5),
            "accept_unverified": self.plan.market is Market.TINY,
            "sealed_key_hash": ZERO_HASH,
            "max_recipients": Small(0),
            "expiry": UnixSeconds(self.clock.now + EXPIRY_SECONDS),
            "nonce": Nonce(0),
        }
        return Order(**{**fields, **changes})  # type: ignore[arg-type]

    def submission(self, spec: JobSpec, order: Order) -> Submission:
        """The order, signed with the session key."""
        session = self.session()
        return Submission(
            seal(DOMAIN, order, self.session_key.sign),
            seal(DOMAIN, session, self.account.sign),
            spec,
        )

    def session(self) -> Session:
        """The only session of this run."""
        expires = UnixSeconds(self.plan.limits.session_max)
        return Session(
            self.account.address,
            self.session_key.address,
            key("coordinator").address,
            Amount(40_000_000),
            expires,
        )

    def _submit(self, submission: Submission, stop_after: float | None) -> None:
        job_id = digest(DOMAIN, submission.order.message)

        def answered(answer: Answer) -> None:
            if answer is None and self.clock.now < submission.order.message.expiry:
                self._submit(submission, stop_after)
                return
            is_lacking = isinstance(answer, Refused) and answer.code is Code.NO_VOUCHER
            in_time = self.clock.now < submission.order.message.expiry
            if is_lacking and in_time and not self.is_silent:
                self.schedule.after(1, lambda: self._prepay(submission, stop_after))
                return
            self.under_way -= 1
            if isinstance(answer, Refused):
                self.reserved.pop(job_id, None)
                self.refused.append(answer)
                self.refused_jobs.add(job_id)
            elif answer is not None and job_id not in self.acked:
                self.acked[job_id] = submission.spec
                self.ack_hashes[job_id] = answer.digest(DOMAIN)  # type: ignore[attr-defined]
                if stop_after is not None:
                    self.schedule.after(stop_after, lambda: self._stop(job_id))
                reads = self.plan.stream(f"reads/{job_id.hex()}")
                if reads.random() < 0.3:
                    self.schedule.after(reads.uniform(0, 12), lambda: self._read_logs(job_id))

        self.network.request(
            self.name,
            "coordinator",
            lambda: self.api.take_order(submission),
            answered,
            SEND_SECONDS,
        )

    def _read_logs(self, job_id: Hash32) -> None:
        def ignore(_: Answer) -> None:
            pass

        self.network.request(
            self.name, "coordinator", lambda: self.api.read_logs(job_id), ignore, SEND_SECONDS
        )

    def _stop(self, job_id: Hash32) -> None:
        stop = seal(DOMAIN, Stop(job_id, self.clock.now), self.session_key.sign)
        self._sign_off(stop, lambda: self.stopped.setdefault(job_id, self.schedule.now))

    # -------------------------------------------------------------------------------------- leaving

    def release(self, chain: Chain, plan: Release) -> None:
        """Takes back what it does not spend; "all" means what its vouchers leave."""
        account, delay = self.account.address, self.plan.limits.allocation_release
        if self.seen is None:
            self.schedule.after(1, lambda: self.release(chain, plan))
            return
        spent = max(self.signed, self.seen.charged + self.seen.reserved)
        unspent = self.seen.allocation - spent
        amount = chain.allocated[account] if plan.share == 1 else max(1, int(plan.share * unspent))
        chain.request_release(account, amount)
        if plan.hands_in is None:
            self.leaves = lambda: (
                account in chain.releases and chain.request_release(account, amount)
            )
            self.schedule.after(delay, lambda: self._finish_release(chain))
        else:
            self.is_withholding = True
            self.schedule.after(delay - plan.hands_in, self._hand_in)
            self.schedule.after(delay, lambda: self._elope(chain))
            self.schedule.after(delay + PAYS_LATE_SECONDS, lambda: self._pay_up(chain))

    def _hand_in(self) -> None:
        self.is_withholding = False
        self._vouch()

    def _elope(self, chain: Chain) -> None:
        self.is_withholding = True
        try:
            chain.finish_release(self.account.address)
        except Refused:  # a reorganisation brought its request a little later
            self.schedule.after(1, lambda: self._elope(chain))

    def _pay_up(self, chain: Chain) -> None:
        """Allocates again what it had taken back, each time that something is charged."""
        self.is_withholding = False
        missing = (
            max(0, max(self.signed, self.seen.charged) - chain.allocated[self.account.address])
            if self.seen
            else 0
        )
        if missing:
            chain.allocate(self.account.address, missing)
        self.schedule.after(1, lambda: self._pay_up(chain))

    def _finish_release(self, chain: Chain) -> None:
        """Finishes its release once it owes nothing.

        That is so when its last voucher is on chain, so deep that it stays there, and no order runs
        or waits for an answer.
        """
        account, seen = self.account.address, self.seen
        is_square = (
            seen is not None and not seen.reserved and seen.charged <= chain.vouched.get(account, 0)
        )
        is_ready = account in chain.releases and self.schedule.now >= chain.releases[account][1]
        is_square = is_ready and is_square and not self.under_way and not self._is_unsure()
        self.square_for = self.square_for + 1 if is_square else 0
        if self.square_for > self.plan.limits.chain_depth:
            chain.finish_release(account)
        else:
            self.schedule.after(1, lambda: self._finish_release(chain))

    def _is_unsure(self) -> bool:
        """Whether an unanswered order may still arrive and be taken, until it expires."""
        known = {*self.acked, *self.refused_jobs}
        orders = [item.order for item in self.submissions if item.order.digest(DOMAIN) not in known]
        return any(self.schedule.now <= order.message.expiry + 5 for order in orders)

    # -------------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, PollAnswer):
                self._saw(answer)
            self.schedule.after(1 if self.is_calm else self.random.choice([1, 1, 2, 5]), self._look)

        self.network.request(
            self.name,
            "coordinator",
            lambda: self.api.look(self.account.address, self.seq),
            answered,
            SEND_SECONDS,
        )

    def _saw(self, look: PollAnswer) -> None:
        for event in look.events:
            self.seq = max(self.seq, event.seq)
            acked = self.ack_hashes.get(event.job_id)
            if (
                event.commit is not None
                and acked is not None
                and (self.is_calm or self.random.random() < 0.7)
            ):
                commit = event.commit.message
                witness = Witness(
                    digest(DOMAIN, commit), acked, commit.beacon_round, self.clock.now
                )
                self._sign_off(seal(DOMAIN, witness, self.session_key.sign), lambda: None)
            if event.name in ("verdict", "ended"):
                self.reserved.pop(event.job_id, None)
        for run in look.runs:
            assert run.output is None or run.verdict is not None, "I8: an output before its verdict"
            if run.output is not None:
                self.served[run.job_id] = run.charged
        assert sum(self.served.values()) <= self.signed, "I4: an output was served without voucher"
        self.seen = look.account
        if (
            not self.is_silent
            and look.account.charged > look.account.vouched
            and (self.is_calm or self.random.random() < 0.5)
        ):
            self._vouch()

    def _vouch(self, after: Callable[[], object] = lambda: None) -> None:
        """Signs a voucher for what it owes, as far as it has read, and for what its orders reserve,
        as far as its lead goes.
        """
        charged = self.seen.charged if self.seen else Amount(0)
        allocation = self.seen.allocation if self.seen else Amount(0)
        promised, limit = Amount(sum(self.reserved.values())), self.session().up_to
        cumulative = credit.voucher_for(
            charged, promised, Amount(self.lead), self.signed, allocation, limit
        )
        assert cumulative <= max(self.signed, charged + self.lead), "I4: more than the lead"
        if not cumulative:
            after()
            return
        self.signed = cumulative
        voucher = Voucher(self.account.address, key("coordinator").address, cumulative)
        signed = seal(DOMAIN, voucher, self.session_key.sign)
        self.vouchers.append(signed)
        self._sign_off(signed, lambda: self._covered(cumulative), after)

    def _covered(self, amount: Amount) -> None:
        self.taken_voucher = max(self.taken_voucher, amount)

    def _sign_off(
        self,
        envelope: Envelope[Witness] | Envelope[Voucher] | Envelope[Stop],
        taken: Callable[[], object],
        after: Callable[[], object] = lambda: None,
    ) -> None:
        def answered(answer: Answer) -> None:
            if (
                isinstance(envelope.message, Voucher)
                and isinstance(answer, Refused)
                and answer.code is Code.OVER_ALLOCATION
            ):
                # The refusal said that the end of its release is too close, and that this helps.
                self.leaves()
            elif answer is not None and not isinstance(answer, Refused):
                taken()
            after()

        self.network.request(
            self.name, "coordinator", lambda: self.api.take_signed(envelope), answered, SEND_SECONDS
        )
