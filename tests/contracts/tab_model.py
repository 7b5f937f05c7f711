"""What Escrow and Jobs do, in Python: each method raises ModelRefused or changes the books."""

from collections import defaultdict
from dataclasses import dataclass, field

from contracts.world import CLIENT_CLOSE, COORDINATOR_CLOSE, EVIDENCE_AGE, EVIDENCE_WINDOW
from quorate_protocol.limits import DAY

START_ALLOWANCE = 120
FEE_BPS = 300


class ModelRefused(Exception):
    """The model refuses a call, for the reason that the contracts give."""


def need(holds: bool, reason: str) -> None:
    if not holds:
        raise ModelRefused(reason)


@dataclass
class Tab:
    locked: int = 0
    paid: int = 0
    drawn: int = 0
    closes_at: int = 0

    @property
    def free(self) -> int:
        return self.locked - self.paid


@dataclass
class Limit:
    amount: int = 0
    day: int = 0
    spent: int = 0

    def spend(self, amount: int, now: int) -> None:
        spent = self.spent if self.day == now // DAY else 0
        need(spent + amount <= self.amount, "limit")
        self.day, self.spent = now // DAY, spent + amount


@dataclass
class Job:
    client: str
    budget: int
    until: int
    shown: dict[str, tuple[int, str]] = field(default_factory=dict)  # pay, answer
    first: int = 0
    last: int = 0
    is_over: bool = False


@dataclass
class Model:
    """The books. Accounts are labels; `coordinators` gives the end of each statement key."""

    coordinators: dict[str, dict[str, int]]
    staked: frozenset[str]
    wallets: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    balances: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tabs: dict[tuple[str, str], Tab] = field(default_factory=lambda: defaultdict(Tab))
    sessions: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    limits: dict[tuple[str, str], Limit] = field(default_factory=lambda: defaultdict(Limit))
    promised: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    jobs: dict[int, Job] = field(default_factory=dict)

    # balances

    def deposit(self, who: str, amount: int, payee: str) -> None:
        need(amount > 0, "amount")
        self.wallets[who] -= amount
        self.balances[who] += amount
        if payee:
            try:
                self.lock(who, payee, amount)
            except ModelRefused:
                self.wallets[who] += amount
                self.balances[who] -= amount
                raise

    def withdraw(self, who: str, amount: int) -> None:
        need(0 < amount <= self.balances[who], "amount")
        self.balances[who] -= amount
        self.wallets[who] += amount

    def move(self, sender: str, receiver: str, amount: int) -> None:
        need(amount <= self.balances[sender], "amount")
        self.balances[sender] -= amount
        self.balances[receiver] += amount

    # tabs

    def lock(self, payer: str, payee: str, amount: int) -> None:
        need(amount <= self.balances[payer] and amount > 0 and payer != payee, "amount")
        tab = self.tabs[payer, payee]
        need(tab.closes_at == 0, "closing")
        self.balances[payer] -= amount
        tab.locked += amount

    def lock_by_poster(self, sender: str, payer: str, payee: str, amount: int, now: int) -> None:
        need(self._is_poster(sender, payer), "signer")
        self.lock(payer, payee, amount)
        try:
            self.limits[payer, "locks"].spend(amount, now)
        except ModelRefused:
            self.balances[payer] += amount
            self.tabs[payer, payee].locked -= amount
            raise

    def _is_poster(self, sender: str, account: str) -> bool:
        return account in self.coordinators and sender == f"{account} posting"

    def show_session(self, payer: str, payee: str, key: str, up_to: int, expires: int) -> None:
        before = self.sessions.get((payer, payee, key), (0, 0))
        self.sessions[payer, payee, key] = (max(before[0], up_to), max(before[1], expires))

    def redeem(self, payer: str, payee: str, cumulative: int, key: str, now: int) -> None:
        if (payer, payee, key) in self.sessions:
            up_to, expires = self.sessions[payer, payee, key]
            need(now <= expires + CLIENT_CLOSE, "expired")
            need(cumulative <= up_to, "amount")
        else:
            need(key in self.coordinators.get(payer, {}), "voucher")
            need(now <= self.coordinators[payer][key] + COORDINATOR_CLOSE, "expired")
        self.promised[payer, payee] = max(self.promised[payer, payee], cumulative)
        tab = self.tabs[payer, payee]
        added = max(0, min(cumulative, tab.locked) - tab.paid)
        tab.paid += added
        if payee in self.coordinators:
            tab.drawn += added
            self.balances[payee] += added

    def payroll(self, sender: str, payer: str, pays: dict[str, int], now: int) -> None:
        need(self._is_poster(sender, payer), "signer")
        added = {each: max(0, sum_ - self.tabs[payer, each].paid) for each, sum_ in pays.items()}
        need(sum(added.values()) <= self.balances[payer], "amount")
        self.limits[payer, "payroll"].spend(sum(added.values()), now)
        self.balances[payer] -= sum(added.values())
        for payee, amount in added.items():
            self.tabs[payer, payee].locked += amount
            self.tabs[payer, payee].paid += amount
            self.promised[payer, payee] = max(self.promised[payer, payee], pays[payee])

    def draw(self, payee: str, payers: list[str]) -> None:
        tabs = [self.tabs[payer, payee] for payer in dict.fromkeys(payers)]
        total = sum(tab.paid - tab.drawn for tab in tabs)
        need(total > 0, "amount")
        self.wallets[payee] += total
        for tab in tabs:
            tab.drawn = tab.paid

    def give_back(self, sender: str, payer: str, payee: str, amount: int, now: int) -> None:
        need(sender == payee or self._is_poster(sender, payee), "signer")
        if sender != payee:
            limit = self.limits[payee, "locks"]
            spent = limit.spent if limit.day == now // DAY else 0
            need(spent + amount <= limit.amount, "limit")
        need(0 < amount <= self.tabs[payer, payee].free, "amount")
        if sender != payee:
            self.limits[payee, "locks"].spend(amount, now)
        self.tabs[payer, payee].locked -= amount
        self.balances[payer] += amount

    def close(self, payer: str, payee: str, now: int) -> None:
        tab = self.tabs[payer, payee]
        need(tab != Tab() and tab.closes_at == 0, "closing")
        tab.closes_at = now + (COORDINATOR_CLOSE if payer in self.coordinators else CLIENT_CLOSE)

    def finish(self, payer: str, payee: str, now: int) -> None:
        tab = self.tabs[payer, payee]
        need(tab.closes_at != 0 and now > tab.closes_at, "early")
        self.balances[payer] += tab.free
        tab.locked, tab.closes_at = tab.paid, 0

    # jobs

    def fund(self, job: int, client: str, budget: int, until: int, now: int) -> None:
        need(job not in self.jobs, "funded")
        need(budget > 0, "amount")
        need(now < until <= now + 400 * DAY, "time")
        self.move(client, "Jobs", budget)
        self.jobs[job] = Job(client, budget, until)

    def _job(self, job: int) -> Job:
        need(job in self.jobs, "unknown")
        need(not self.jobs[job].is_over, "over")
        return self.jobs[job]

    def show(self, number: int, provider: str, answer: str, times: tuple[int, ...]) -> None:
        """`times`: now, acceptBy, maxDuration, the commit's time, usage, price an hour."""
        now, accept_by, max_duration, time, usage, price = times
        job = self._job(number)
        need(now <= job.until, "late")
        need(len(job.shown) < 7, "count")
        need(provider not in job.shown, "shown")
        need(provider in self.staked, "stake")
        need(accept_by < now, "early")
        need(now <= accept_by + max_duration + EVIDENCE_AGE, "old")
        need(accept_by - START_ALLOWANCE <= time <= now, "time")
        need(not job.first or time <= job.first, "copied")
        seconds = min(usage, max_duration, time - accept_by + START_ALLOWANCE)
        job.shown[provider] = (min(seconds * price // 3600, job.budget), answer)
        job.first, job.last = job.first or now, now

    def pay_job(self, number: int, now: int, listed: frozenset[str]) -> None:
        job = self._job(number)
        need(len(listed) == len(job.shown), "count")
        need(listed == frozenset(job.shown), "providers")
        sizes: dict[str, int] = defaultdict(int)
        for _, answer in job.shown.values():
            sizes[answer] += 1
        largest = max(sizes.values(), default=0)
        ready = min(job.until, job.last + EVIDENCE_WINDOW) if largest >= 2 else job.until
        need(now > ready, "early")
        job.is_over = True
        winners = {p: pay for p, (pay, answer) in job.shown.items() if sizes[answer] == largest}
        left = job.budget
        if largest >= 2:
            total = sum(winners.values())
            fee = total * FEE_BPS // 10_000
            due = max(total + fee, 1)
            share = min(due, job.budget)
            parts = {p: pay * share // due for p, pay in winners.items()}
            parts["coordinator"] = fee * share // due
            for who, part in parts.items():
                self.move("Jobs", who, part)
                left -= part
        self.move("Jobs", job.client, left)

    def reclaim(self, number: int, now: int) -> None:
        job = self._job(number)
        need(now > job.until, "early")
        need(len(job.shown) < 2, "shown")
        job.is_over = True
        self.move("Jobs", job.client, job.budget)

    def release(self, number: int, sender: str, now: int) -> None:
        need(sender in ("coordinator", "coordinator posting"), "signer")
        job = self._job(number)
        need(not job.shown, "shown")
        job.until = min(job.until, now + EVIDENCE_WINDOW)
