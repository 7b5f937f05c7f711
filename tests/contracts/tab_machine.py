"""Random walks that do the same to Escrow, Jobs and the model, at boundary times.

After each step refusals and books are equal, and the invariants of the money hold. At the end of a
walk everybody takes out what is its own, and nothing is left.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from contracts.evm import Reverted
from contracts.executions import HOUR, PRICE
from contracts.funded import FundedOrder
from contracts.tab_model import Job, Model, ModelRefused
from contracts.world import (
    CLIENT_CLOSE,
    COORDINATOR_CLOSE,
    EVIDENCE_WINDOW,
    World,
    account,
    market,
    pair,
)
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

K, K2 = "coordinator", "coordinator2"
CLIENTS, OWNERS = ("client0", "client1"), ("owner0", "owner1", "owner2")
UNSTAKED = "owner3"  # registered, without a slot
PEOPLE = (*CLIENTS, K, K2, *OWNERS, UNSTAKED)
PAIRS = [(c, k) for c in (*CLIENTS, "owner0") for k in (K, K2)]
PAIRS += [(K, p) for p in (*OWNERS, UNSTAKED)] + [(K, K2), (K2, "owner0")]
SENDERS = (*PEOPLE, "stranger", f"{K} posting", f"{K2} posting", f"{K} statement")
STARTED = 10**9
LIMIT = 300
FOREVER = 2**48 - 1


@lru_cache(maxsize=1)
def _peopled() -> World:
    world = market()
    world.coordinator(K2)
    for owner in OWNERS:
        world.provider(owner)
    world.provider(UNSTAKED, slots=0)
    for who in PEOPLE:
        world.fund(who, STARTED)
    for who in (K, K2):
        world.send(who, world.escrow, "set_limits", LIMIT, LIMIT)
    return world


class Walk:
    """One walk from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = _peopled().fork()
        keys = {k: {f"{k} statement": FOREVER} for k in (K, K2)}
        self.model = Model(keys, frozenset(OWNERS))
        for who in PEOPLE:
            self.model.wallets[who] = STARTED
        for who in (K, K2):
            for kind in ("payroll", "locks"):
                self.model.limits[who, kind].amount = LIMIT
        self.orders: dict[int, FundedOrder] = {}
        self.paid: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()  # of all calls, "" = taken
        self.acts = [getattr(self, name) for name in dir(self) if name.startswith("do_")]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice(self.acts)()
            self.check()
        self.everybody_leaves()

    def both(
        self, who: str, name: str, arguments: tuple[Any, ...], act: Callable[[], None]
    ) -> None:
        """Sends a call, and lets the model do the same. They must agree."""
        wanted = got = ""
        try:
            act()
        except ModelRefused as refusal:
            wanted = str(refusal)
        is_of_jobs = name in ("fund", "show", "pay_job", "reclaim", "release")
        contract = self.world.jobs if is_of_jobs else self.world.escrow
        try:
            self.world.send(who, contract, name.removesuffix("_job"), *arguments)
        except Reverted as refusal:
            got = str(refusal)
            assert got, f"{name}: a refusal gives its reason"
        self.reasons[name, got] += 1
        assert got == wanted, f"{name}: the contract says {got!r}, the model {wanted!r}"

    def check(self) -> None:
        """Books of contracts and model are equal, and the invariants hold."""
        world, model, held = self.world, self.model, 0
        for who in (*PEOPLE, "stranger"):
            assert world.balance(who) == model.balances[who], who
            held += model.balances[who]
        funded = sum(job.budget for job in model.jobs.values() if not job.is_over)
        assert world.balance(world.jobs.address) == model.balances["Jobs"] == funded
        for payer, payee in PAIRS:
            tab = model.tabs[payer, payee]
            found = world.tab(payer, payee)
            assert found == (tab.locked, tab.paid, tab.drawn, tab.closes_at), (payer, payee)
            assert tab.drawn <= tab.paid <= tab.locked
            assert self.paid[payer, payee] <= tab.paid <= model.promised[payer, payee]
            self.paid[payer, payee] = tab.paid
            held += tab.locked - tab.drawn
        assert world.tokens(world.escrow.address) == held + funded

    def everybody_leaves(self) -> None:
        """Every account takes out its own after its delay, by its own transactions alone."""
        world, model = self.world, self.model
        for payer, payee in PAIRS:
            if world.tab(payer, payee)[3] == 0 and any(world.tab(payer, payee)):
                world.send(payer, world.escrow, "close", account(payee))
        world.evm.travel(400 * DAY)
        for number, job in model.jobs.items():
            if not job.is_over and len(job.shown) < 2:
                place = (account(job.client), self.orders[number].job_id)
                world.send(job.client, world.jobs, "reclaim", *place)
            elif not job.is_over:
                self.orders[number].pay(*job.shown)
        for payer, payee in PAIRS:
            if world.tab(payer, payee)[3]:
                world.send(payer, world.escrow, "finish", account(payer), account(payee))
            locked, paid, drawn, _ = world.tab(payer, payee)
            assert locked == paid
            if drawn < paid:
                world.send(payee, world.escrow, "draw", account(payee), [account(payer)])
        for who in (*PEOPLE, "stranger"):
            if world.balance(who):
                world.send(who, world.escrow, "withdraw", world.balance(who))
        assert world.tokens(world.escrow.address) == 0

    # What happens

    def amount(self) -> int:
        return self.rng.choice((0, 1, 50, 99, 100, 101, 250, 300, 301))

    def near(self, sum_: int) -> int:
        """A cumulative sum at a boundary of what is paid or locked."""
        return max(0, sum_ + self.rng.choice((-1, 0, 1, 50, 120)))

    def do_deposit(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        into = self.rng.choice(("", payee, payee))
        place = account(into) if into else ZERO_ADDRESS
        amount = self.amount()
        self.both(
            payer, "deposit", (amount, place), partial(self.model.deposit, payer, amount, into)
        )

    do_deposit_again = do_deposit

    def do_withdraw(self) -> None:
        who, amount = self.rng.choice(PEOPLE), self.amount()
        self.both(who, "withdraw", (amount,), partial(self.model.withdraw, who, amount))

    def do_pay(self) -> None:
        who, to, amount = self.rng.choice(PEOPLE), self.rng.choice(PEOPLE), self.amount()
        self.both(who, "pay", ([pair(to, amount)],), partial(self.model.move, who, to, amount))

    def do_lock(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        amount = self.amount()
        arguments = (account(payee), amount)
        self.both(payer, "lock", arguments, partial(self.model.lock, payer, payee, amount))

    def do_lock_many(self) -> None:
        payer, payee = self.rng.choice(PAIRS[6:])
        amount, sender = self.amount(), self.rng.choice((f"{payer} posting",) * 20 + SENDERS)
        arguments = (account(payer), [pair(payee, amount)])
        act = partial(self.model.lock_by_poster, sender, payer, payee, amount, self.world.now)
        self.both(sender, "lock_many", arguments, act)

    def do_payroll(self) -> None:
        payees = self.rng.sample(PAIRS[6:-1], 2)
        pays = {payee: self.near(self.model.tabs[K, payee].paid) for _, payee in payees}
        sender = self.rng.choice((f"{K} posting",) * 40 + SENDERS)
        arguments = (account(K), ZERO_HASH, [pair(*each) for each in pays.items()])
        act = partial(self.model.payroll, sender, K, pays, self.world.now)
        self.both(sender, "payroll", arguments, act)

    do_payroll_again = do_payroll

    def do_set_limits(self) -> None:
        who, payroll, locks = self.rng.choice((K, K2)), self.amount() + 100, self.amount() + 100

        def act() -> None:
            self.model.limits[who, "payroll"].amount = payroll
            self.model.limits[who, "locks"].amount = locks

        self.both(who, "set_limits", (payroll, locks), act)

    def do_redeem_session(self) -> None:
        payer, payee = self.rng.choice(PAIRS[:6])
        tab, key = self.model.tabs[payer, payee], f"{payer} session{self.rng.randrange(2)}"
        up_to = self.near(tab.locked)
        expires = self.world.now + self.rng.choice((-CLIENT_CLOSE - 1, -CLIENT_CLOSE, 0, DAY))
        shown = [self.world.session(payer, payee, up_to, expires, key)]
        shown = shown[: self.rng.randrange(2)]
        cumulative = self.near(self.rng.choice((tab.paid, tab.locked)))
        arguments = (
            *(account(payee), ZERO_HASH, shown),
            [self.world.voucher(payer, payee, cumulative, key)],
        )

        def act() -> None:
            before = dict(self.model.sessions)
            try:
                if shown:
                    self.model.show_session(payer, payee, key, up_to, expires)
                self.model.redeem(payer, payee, cumulative, key, self.world.now)
            except ModelRefused:
                self.model.sessions = before
                raise

        self.both(self.rng.choice(SENDERS), "redeem", arguments, act)

    do_redeem_session_again = do_redeem_session

    def do_redeem_statement(self) -> None:
        payer, payee = self.rng.choice(PAIRS[6:] * 4 + PAIRS)
        tab = self.model.tabs[payer, payee]
        cumulative = self.near(self.rng.choice((tab.paid, tab.locked)))
        keys = [*self.model.coordinators.get(payer, {}), f"{payer} operator", f"{K2} statement"]
        key = self.rng.choice(keys)
        voucher = self.world.voucher(payer, payee, cumulative, key)
        arguments = (account(payee), ZERO_HASH, [], [voucher])
        act = partial(self.model.redeem, payer, payee, cumulative, key, self.world.now)
        self.both(self.rng.choice(SENDERS), "redeem", arguments, act)

    def do_draw(self) -> None:
        payee = self.rng.choice((*OWNERS, UNSTAKED, K))
        arguments = (account(payee), [account(K), account(K2), account(K)])
        self.both("stranger", "draw", arguments, partial(self.model.draw, payee, [K, K2]))

    def do_give_back(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        amount = self.rng.choice((self.amount(), self.model.tabs[payer, payee].free))
        sender = self.rng.choice((*(payee, f"{payee} posting") * 6, *SENDERS))
        arguments = (account(payer), account(payee), amount)
        act = partial(self.model.give_back, sender, payer, payee, amount, self.world.now)
        self.both(sender, "give_back", arguments, act)

    def do_close(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        act = partial(self.model.close, payer, payee, self.world.now)
        self.both(payer, "close", (account(payee),), act)

    def do_finish(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        act = partial(self.model.finish, payer, payee, self.world.now)
        self.both("stranger", "finish", (account(payer), account(payee)), act)

    def do_finish_in_time(self) -> None:
        """The next tab that closes is finished in its last second, and after it."""
        ends = {tab.closes_at: key for key, tab in self.model.tabs.items() if tab.closes_at}
        if ends and min(ends) >= self.world.now:
            payer, payee = ends[min(ends)]
            for now in (min(ends), min(ends) + 1):
                self.world.evm.now = now
                act = partial(self.model.finish, payer, payee, self.world.now)
                self.both("stranger", "finish", (account(payer), account(payee)), act)

    def do_relay(self) -> None:
        payer, payee = self.rng.choice(PAIRS)
        name, fee, amount = (
            *(self.rng.choice(("lock_for", "close_for", "withdraw_for")),),
            *(self.rng.choice((0, 1, 50)), self.amount()),
        )
        rest = {"lock_for": (payee, amount), "close_for": (payee,), "withdraw_for": (amount,)}[name]

        def act() -> None:
            before = self.model.balances[payer], self.model.balances["stranger"]
            try:
                self.model.move(payer, "stranger", fee)
                if name == "lock_for":
                    self.model.lock(payer, payee, amount)
                elif name == "close_for":
                    self.model.close(payer, payee, self.world.now)
                elif fee >= amount:
                    raise ModelRefused("fee")
                else:
                    self.model.withdraw(payer, amount - fee)
            except ModelRefused:
                self.model.balances[payer], self.model.balances["stranger"] = before
                raise

        self.both("stranger", name, self.world.relayed(name, payer, *rest, fee=fee), act)

    def do_rotate(self) -> None:
        keys = self.model.coordinators[K]
        if len(keys) < 4:
            keys[list(keys)[-1]] = self.world.now
            fresh = f"{K} statement{len(keys)}"
            keys[fresh] = FOREVER
            self.world.send(K, self.world.stakes, "rotate_key", account(fresh))

    def do_travel(self) -> None:
        midnight = DAY - self.world.now % DAY
        short, long = (1, 60, HOUR, midnight - 1, midnight), (CLIENT_CLOSE, COORDINATOR_CLOSE)
        self.world.evm.travel(self.rng.choice(short * 4 + long))

    # Funded orders

    def do_fund(self) -> None:
        number = self.rng.randrange(max(1, len(self.orders)), len(self.orders) + 2)
        self.fund(number, self.amount() * USD // 100, self.rng.choice((0, 20, 20, 400, 401)))

    def fund(self, number: int, budget: int, days: int) -> None:
        """The client of an order gets the budget and pays it in. Then an hour passes."""
        if number not in self.orders:
            self.orders[number] = FundedOrder(self.world, self.rng.choice(CLIENTS), number)
        order, until = self.orders[number], self.world.now + days * DAY
        self.do_give(order.client, budget)
        act = partial(self.model.fund, number, order.client, budget, until, self.world.now)
        self.both(order.client, "fund", (order.job_id, budget, until), act)
        if order.accept_by > self.world.now:
            self.world.evm.travel(HOUR)

    def do_job_to_its_end(self) -> None:
        """An order is funded, shown, and paid in the first second in which it can be."""
        number = len(self.orders) + 1
        self.fund(number, self.rng.choice((1, USD, 3 * USD, 6 * USD)), self.rng.choice((1, 20)))
        for _ in range(self.rng.randrange(1, 5)):
            self.world.evm.travel(self.rng.choice((0, 60, HOUR)))
            self.show(number)
        job = self.model.jobs[number]
        for moment in sorted({job.last + EVIDENCE_WINDOW, job.until}):
            for now in range(max(moment, self.world.now), moment + 2):
                self.world.evm.now = now
                self.pay_job(number, frozenset(job.shown))
                self.reclaim(number)

    def do_give(self, who: str = K, amount: int = 500) -> None:
        act = partial(self.model.deposit, who, amount, "")
        self.both(who, "deposit", (amount, ZERO_ADDRESS), act)

    def job(self) -> tuple[int, FundedOrder, Job | None]:
        open_ = [n for n in self.orders if n in self.model.jobs and not self.model.jobs[n].is_over]
        number = self.rng.choice([*open_, *open_, *self.orders])
        return number, self.orders[number], self.model.jobs.get(number)

    def do_show(self) -> None:
        if self.orders:
            self.show(self.job()[0])

    def show(self, number: int) -> None:
        order, job = self.orders[number], self.model.jobs.get(number)
        provider = self.rng.choice((*OWNERS * 3, UNSTAKED))
        answer = self.rng.choice(("a", "a", "a", "b"))
        accept_by, usage = order.accept_by, self.rng.choice((1, 600, 1800, 7200))
        times = [accept_by + each for each in (-121, -120, 900, 900, 900, 900, HOUR)]
        if job and job.first:
            times += [job.first, job.first + 1]
        time = self.rng.choice(times)
        keys = self.model.coordinators[K]
        signed = {"by_statement": _at(keys, accept_by), "by_receipt": _at(keys, time)}
        run = order.run(provider, answer.encode(), time=time, usageMs=usage * 1000, **signed)
        shown = (self.world.now, accept_by, HOUR, time, usage, PRICE)
        act = partial(self.model.show, number, provider, answer, shown)
        self.both("stranger", "show", (order.values, run), act)

    do_show_again = do_show

    def do_pay_job(self) -> None:
        if self.orders:
            number, _, job = self.job()
            shown = list(job.shown) if job else []
            wrong = (shown[1:], [*shown[1:], UNSTAKED])
            self.pay_job(number, frozenset(self.rng.choice((shown, shown, *wrong))))

    def pay_job(self, number: int, listed: frozenset[str]) -> None:
        arguments = (self.orders[number].values, sorted(account(each) for each in listed))
        act = partial(self.model.pay_job, number, self.world.now, listed)
        self.both("stranger", "pay_job", arguments, act)

    def do_reclaim(self) -> None:
        if self.orders:
            self.reclaim(self.job()[0])

    def reclaim(self, number: int) -> None:
        order = self.orders[number]
        arguments = (account(order.client), order.job_id)
        act = partial(self.model.reclaim, number, self.world.now)
        self.both("stranger", "reclaim", arguments, act)

    def do_release(self) -> None:
        if self.orders:
            number, order, _ = self.job()
            sender = self.rng.choice((K, f"{K} posting", K2, order.client))
            act = partial(self.model.release, number, sender, self.world.now)
            self.both(sender, "release", (order.values,), act)


def _at(keys: dict[str, int], moment: int) -> str:
    return next(key for key, end in keys.items() if end >= moment)
