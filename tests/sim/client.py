"""A simulated client: orders, witnesses, sometimes stops, and signs vouchers.

It is slow or offline now and then. It signs no more than it can check, and its lead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import Compare, JobSpec
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Ack, Order, Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import AccountView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import credit, orders, settlement
from quorate_protocol.rules.orders import Submission, is_fast
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Comparator,
    Hash32,
    Label,
    Nonce,
    Price,
    PriceTier,
    Round,
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
from sim.chain import OWN, Chain
from sim.clock import Clock, clock_of
from sim.escrow import Tab
from sim.network import Answer, Network
from sim.parties import BEACON, DOMAIN, key
from sim.plan import JobPlan, Leaving, Market, Plan
from sim.schedule import Schedule

SEND_SECONDS = 3.0
LEAD = 20_000  # millionths that a client signs ahead; boasters' jobs need more
LONG_LEAD = 10_000_000
EXPIRY_SECONDS = 75
REFUSALS_MAX = 5
RENTAL_NONCE, RENTAL_AHEAD = Nonce(30), 900  # millionths that a rental may reserve
ORDINARY: dict[str, object] = {
    "max_executions": Small(5),
    "budget": Amount(1_000_000),
    "max_price_per_hour": Price(200_000),
}
UNVERIFIED: dict[str, object] = {
    "verify_tier": VerifyTier.NONE,
    "accept_unverified": True,
    "caseable": False,
}


@dataclass(frozen=True, slots=True)
class Api:
    """The coordinator's API, as a client reaches it."""

    take_order: Callable[[Submission], object]
    take_session: Callable[[Envelope[Session]], object]
    take_signed: Callable[[Envelope[Witness] | Envelope[Voucher] | Envelope[Stop]], object]
    read_logs: Callable[[Hash32], object]
    take_allowance: Callable[[Hash32, Address, Amount], object]
    look: Callable[[bytes, int], PollAnswer]
    give_back: Callable[[Address, Amount], object]
    chain: Chain


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
    is_calm: bool = False
    seen: AccountView | None = None  # its account when it last looked
    under_way: int = 0  # orders without an answer
    is_withholding: bool = False  # signs no vouchers for now
    is_leaving: bool = False  # orders nothing more
    refusals: int = 0  # to give its money back
    is_abandoned: bool = False  # its coordinator is gone, so it pays nothing more
    asleep_until: int = 0
    rental: Hash32 = ZERO_HASH
    signs_until: int = 0  # for its rental
    funded: dict[Hash32, Order] = field(default_factory=dict)  # orders with an escrow of their own

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
        if self.plan.has_rentals:
            later = 10 * self.plan.has_spot * (self.number % 2)
            begin = self.plan.stream(f"rent/{self.number}").uniform(2, 25) + later
            self.schedule.after(begin, self._rent)
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
        chance = self.plan.stream(f"large/{job.client}/{job.number}").random()
        spec = workload.make_spec(
            random,
            f"job-{job.client}-{job.number}",
            is_long=self.plan.has_boasters,
            has_gpus=self.plan.has_gpus,
            is_large=chance < 0.2 and not self.plan.party,
        )
        if self.plan.has_absent_inputs and self.number == 1:
            spec = replace(spec, image=workload.DEAD_IMAGE, image_bytes=0, start_within=Seconds(30))
        elif self.plan.has_gateway and self.number == 1:
            spec = replace(spec, gateways=(workload.SOME_GATEWAY,))
        if self.plan.has_coin_flips and not self.plan.has_absent_inputs and self.number == 1:
            spec = workload.toss_coins(spec)
        if self.plan.stream(f"public/{job.client}/{job.number}").random() < 0.15:
            spec = replace(spec, public=True)
        is_funded = job.number == self.plan.funded_job and self.number == 0
        share = 0.9 if self.plan.has_two_pools else 0.2
        is_noisy = self.plan.stream(f"noisy/{job.client}/{job.number}").random() < share
        if is_noisy and not is_funded and workload.kind_of(spec) == "pure":
            spec = workload.with_noise(spec)
        changes: dict[str, object] = {}
        chance = self.plan.stream(f"tier/{job.client}/{job.number}").random()
        chance *= 4 if self.plan.market is Market.LARGE else 1  # there few results are held anyway
        if chance < 0.08:
            changes = UNVERIFIED
        elif chance < 0.3 and not is_funded:
            fast = chance < 0.25
            tier = VerifyTier.QUORUM_2_FAST if fast else VerifyTier.QUORUM_2
            changes = {"verify_tier": tier}
        if self.plan.party:  # an honest client's ordinary job
            argv = (spec.argv[0], "pure", *spec.argv[2:])
            spec = replace(spec, argv=argv, compare=Compare())
            changes = ORDINARY
        order = self.order(spec, random, nonce=Nonce(job.number), **changes)
        if self.is_leaving:
            return
        if is_funded:
            self._fund(spec, order)
            return
        most = settlement.charge_limit(order, Label.QUORUM_2, order.max_fee_bps)
        if self.seen is None or sum(self.reserved.values()) + most > self.lead:
            if not self.is_calm:
                self.schedule.after(1, partial(self._order_one, job))
            return
        self.place(self.submission(spec, order), job.stop_after)

    def _rent(self) -> None:
        """Rents a machine. Sometimes it signs nothing more after a while, or stops it."""
        random = self.plan.stream(f"rental/{self.number}")
        spec = workload.make_rental(random, f"rental-{self.number}", self.plan.has_gpus)
        spec = replace(spec, spot=self.plan.has_spot and self.number % 2 == 0)
        budget = Amount(random.choice([1_500, 100_000, 100_000]))
        changes = {**UNVERIFIED, "max_executions": Small(1), "budget": budget}
        # Few owners are so cheap, so rentals on demand meet spot rentals there.
        price = (50_500 if spec.spot else 101_000) if self.plan.has_spot else 150_000
        changes["max_price_per_hour"] = Price(price)
        order = self.order(spec, random, nonce=RENTAL_NONCE, **changes)
        if self.is_leaving or self.seen is None:
            return
        self.signs_until = self.schedule.now + random.choice([4, 4, 15, 1_000])
        submission = self.submission(spec, order)
        self.submissions.append(submission)
        self.rental = submission.order.digest(DOMAIN)
        self.reserved[self.rental] = RENTAL_AHEAD
        self.under_way += 1
        self._prepay(submission, random.choice([None, None, random.uniform(1, 25)]))

    def _allow_some(self) -> None:
        """Sometimes says how much its rental may cost in all, and later perhaps that more may."""
        random = self.plan.stream(f"allow/{self.number}")
        for _ in range(random.choice([0, 1, 3])):
            most = Amount(random.randint(100, 2_000))
            self.schedule.after(random.uniform(0, 20), partial(self._allow, most))

    def _allow(self, most: Amount) -> None:
        ask = partial(self.api.take_allowance, self.rental, self.account.address, most)
        self.network.request(self.name, "coordinator", ask, lambda _: None, SEND_SECONDS)

    @property
    def is_paying_ahead(self) -> bool:
        """Whether it signs for the next seconds of its rental."""
        is_rented = self.rental in self.acked and self.rental in self.reserved
        return is_rented and self.schedule.now < self.signs_until

    def place(self, submission: Submission, stop_after: float | None) -> None:
        """Orders, and pays by vouchers."""
        order = submission.order.message
        most = settlement.charge_limit(order, Label.QUORUM_2, order.max_fee_bps)
        self.submissions.append(submission)
        self.reserved[submission.order.digest(DOMAIN)] = most
        self.under_way += 1
        self._prepay(submission, stop_after)

    def _fund(self, spec: JobSpec, order: Order) -> None:
        """Moves an order's budget into its escrow, and orders once final blocks show it."""
        order = replace(order, verify_tier=VerifyTier.STANDARD, accept_unverified=False)
        chain = self.api.chain
        job_id, account = digest(DOMAIN, order), self.account.address
        until = orders.escrow_until(order, self.plan.limits)

        def act() -> None:
            chain.escrow.deposit(account, order.budget)
            chain.jobs.fund(chain.escrow, account, job_id, order.budget, until, chain.now)

        chain.client_acts(account, act)
        self.funded[job_id] = order
        submission = replace(self.submission(spec, order), escrowed=True)
        self.submissions.append(submission)
        self.under_way += 1
        self._submit(submission, None)
        self.schedule.after(until - self.schedule.now + 1, lambda: self._take_back(order))

    def _take_back(self, order: Order) -> None:
        """Ends its order's escrow after the last second for evidence."""
        chain, place = self.api.chain, (order.client, digest(DOMAIN, order))
        job = chain.jobs.jobs.get(place)
        if job is None or job.is_over:
            return

        def act() -> None:
            if len(chain.jobs.jobs[place].shown) < 2:
                chain.jobs.reclaim(chain.escrow, place, chain.now)
            else:
                chain.jobs.pay(chain.escrow, order, chain.now)

        try:
            chain.client_acts(order.client, act)
        except Refused:  # a reorganisation brought something a little later
            self.schedule.after(1, lambda: self._take_back(order))

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
        tier = random.choices(tiers, [6, 6, 4] if is_held_likely else [1, 1, 1])[0]
        price, executions = random.choice([120_000, 200_000]), random.choice([2, 3, 3, 5, 7])
        three = 3 * (price * workload.paid_seconds(spec) // 3_600)
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
            "max_duration": workload.paid_seconds(spec),
            "max_executions": Small(executions),
            "audit_premium_bps": Bps(500),
            "max_fee_bps": Bps(500),
            "verify_tier": tier,
            "comparator": spec.compare.comparator,
            "caseable": spec.compare.comparator is Comparator.EXACT,
            "pool": ZERO_HASH,
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
                self._witness_ack(submission.order.message, answer.message)  # type: ignore[attr-defined]
                if job_id == self.rental:
                    self._allow_some()
                if stop_after is not None:
                    self.schedule.after(stop_after, lambda: self.stop(job_id))
                reads = self.plan.stream(f"reads/{job_id.hex()}")
                if reads.random() < 0.3:
                    self.schedule.after(reads.uniform(0, 12), lambda: self.read_logs(job_id))

        self.network.request(
            self.name,
            "coordinator",
            lambda: self.api.take_order(submission),
            answered,
            SEND_SECONDS,
        )

    def _witness_ack(self, order: Order, ack: Ack) -> None:
        """Countersigns the Ack of a fast order, while its round is unknown by this clock."""
        due = (ack.ack_time - BEACON.genesis_time) // BEACON.period + 3
        is_unknown = self.clock.now < round_time(BEACON, Round(due))
        is_awake = self.is_calm or self.plan.stream(f"acks/{ack.job_id.hex()}").random() < 0.9
        if is_fast(order, ack.rule) and is_unknown and is_awake:
            seen = Witness(ZERO_HASH, self.ack_hashes[ack.job_id], Round(due), self.clock.now)
            self._sign_off(seal(DOMAIN, seen, self.session_key.sign), lambda: None)

    def read_logs(self, job_id: Hash32) -> None:
        def ignore(_: Answer) -> None:
            pass

        self.network.request(
            self.name, "coordinator", lambda: self.api.read_logs(job_id), ignore, SEND_SECONDS
        )

    def stop(self, job_id: Hash32) -> None:
        stop = seal(DOMAIN, Stop(job_id, self.clock.now), self.session_key.sign)
        self._sign_off(stop, lambda: self.stopped.setdefault(job_id, self.schedule.now))

    # -------------------------------------------------------------------------------------- leaving

    def leave(self, plan: Leaving) -> None:
        """Takes its money back, and orders nothing more."""
        self.is_leaving = True
        if plan.asks:
            self._ask_back()
            return
        self.is_withholding = plan.withholds
        self.close_tab()

    def close_tab(self) -> None:
        """Closes its tab, and takes its money when the tab has ended. It needs nobody for that."""
        account, chain = self.account.address, self.api.chain

        def act() -> None:
            if chain.escrow.tabs[account, OWN].closes_at == 0:
                chain.escrow.close(account, OWN, chain.now)

        if chain.escrow.tabs[account, OWN] != Tab():
            chain.client_acts(account, act)
        self.schedule.after(1, self._finish)

    def _finish(self) -> None:
        account, chain = self.account.address, self.api.chain
        if not 0 < chain.escrow.tabs[account, OWN].closes_at < chain.now:
            self.schedule.after(1, self._finish)
            return

        def act() -> None:
            if chain.escrow.tabs[account, OWN].closes_at:
                chain.escrow.finish(account, OWN, chain.now)

        try:
            chain.client_acts(account, act)
        except Refused:  # a reorganisation brought its closing a little later
            self.schedule.after(1, self._finish)
            return
        self.withdraw()
        if not self.is_abandoned:
            self._pay_up()

    def withdraw(self) -> None:
        """Takes out its balance, which nobody can delay."""
        account, chain = self.account.address, self.api.chain
        chain.client_acts(account, lambda: chain.escrow.withdraw_all(account))

    def _ask_back(self) -> None:
        """Asks its coordinator for what is free, again and again until nothing is."""

        def answered(answer: Answer) -> None:
            # The day's limit of the posting key is used up, or money is bound for longer.
            self.refusals += answer == 0
            again = self.close_tab if self.refusals > REFUSALS_MAX else self._ask_back
            self.schedule.after(2, again)

        books = self.api.chain.final_money().escrow
        if books.balances.get(self.account.address):
            self.withdraw()
        wanted = books.tabs[self.account.address, OWN].locked - self.signed
        if wanted <= 0 or self._is_unsure() or self.seen is None or self.seen.reserved:
            if wanted > 0 or not self.is_calm:
                self.schedule.after(2, self._ask_back)
            return
        account = self.account.address
        ask = partial(self.api.give_back, account, Amount(wanted))
        self.network.request(self.name, "coordinator", ask, answered, SEND_SECONDS)

    def _pay_up(self) -> None:
        """Pays what it still owes: it locks that much again, and signs for it."""
        self.is_withholding = False
        account, chain = self.account.address, self.api.chain
        owes = max(self.signed, self.seen.charged) if self.seen else self.signed

        def act() -> None:
            missing = owes - chain.escrow.tabs[account, OWN].locked
            if missing > 0:  # a reorganisation may repeat this later
                chain.escrow.deposit(account, missing, OWN)

        if owes > chain.escrow.tabs[account, OWN].locked:
            chain.client_acts(account, act)
        self.schedule.after(1, self._pay_up)

    def _is_unsure(self) -> bool:
        """Whether an unanswered order may still arrive and be taken, until it expires."""
        known = {*self.acked, *self.refused_jobs}
        orders = [item.order for item in self.submissions if item.order.digest(DOMAIN) not in known]
        return any(self.schedule.now <= order.message.expiry + 5 for order in orders)

    # -------------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        if self.schedule.now < self.asleep_until:
            self.schedule.after(1, self._look)
            return

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
        owed = look.account.charged
        owed = Amount(owed + look.account.reserved) if self.is_paying_ahead else owed
        if (
            not self.is_silent
            and owed > look.account.vouched
            and (self.is_calm or self.random.random() < 0.5)
        ):
            self._vouch()

    def _vouch(self, after: Callable[[], object] = lambda: None) -> None:
        """Signs a voucher for what it owes, as far as it has read, and for what its orders reserve,
        as far as its lead goes.
        """
        charged = self.seen.charged if self.seen else Amount(0)
        locked = self.seen.locked if self.seen else Amount(0)
        promised, limit = Amount(sum(self.reserved.values())), self.session().up_to
        cumulative = credit.voucher_for(
            charged, promised, Amount(self.lead), self.signed, locked, limit
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
            if answer is not None and not isinstance(answer, Refused):
                taken()
            after()

        self.network.request(
            self.name, "coordinator", lambda: self.api.take_signed(envelope), answered, SEND_SECONDS
        )
