"""I11 before Escrow: every act that somebody could aim at the money of others and that is taken.

Each function is one act by one role against daemons that do what the protocol says, also late. What
the contracts refuse changes no state, so it costs its sender alone; tests of refusals hold that.
What an honest account loses is what it was owed and did not get, and the gas of what it only sent
because of the act. `ADMITTED` are those that no rule stops, each with its bound in USD
(docs/trust.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from contracts.griefing import Act, Side
from contracts.test_tokens import hostile
from contracts.world import SLOT_STAKE, Sent, World, account, market, pair
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

K, THIEF, ANY = "coordinator", "thief", "stranger"
CLIENTS, OWNERS = ("client0", "client1"), ("owner0", "owner1", "owner2", "owner3")
LIMIT = 50 * USD  # a day, of the coordinator's posting key
TAB, GUARANTEE, BALANCE = 100 * USD, 5 * USD, 500 * USD
A_YEAR = 10  # money that is kept from its account costs a tenth of it a year


@lru_cache(maxsize=1)
def _market() -> World:
    """A coordinator with capital, clients with tabs, owners with guarantees."""
    world = market()
    for name in (*CLIENTS, K, THIEF):
        world.fund(name, 2000 * USD)
    for name in CLIENTS:
        world.send(name, world.escrow, "deposit", TAB, account(K))
        world.send(name, world.escrow, "deposit", TAB, ZERO_ADDRESS)
        shown = (account(K), ZERO_HASH, [world.session(name)], [])
        world.send(ANY, world.escrow, "redeem", *shown)
    world.send(K, world.escrow, "deposit", BALANCE, ZERO_ADDRESS)
    world.send(K, world.escrow, "set_limits", LIMIT, LIMIT)
    world.send(THIEF, world.escrow, "deposit", TAB, ZERO_ADDRESS)
    for name in OWNERS:
        world.provider(name)
        world.send(K, world.escrow, "lock", account(name), GUARANTEE)
    return world


@dataclass
class Play:
    """A market in which an act is played. Authors are those whose losses are the act's cost."""

    authors: tuple[str, ...] = (THIEF,)
    world: World = field(default_factory=lambda: _market().fork())
    gas: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)  # what each should have more at the end
    before: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.before = {name: self.wealth(name) for name in self.people}

    @property
    def people(self) -> tuple[str, ...]:
        return (*CLIENTS, K, *OWNERS, THIEF, ANY)

    def wealth(self, name: str) -> int:
        """All that an account has or may take when its tabs have ended."""
        world, total = self.world, self.world.tokens(name) + self.world.balance(name)
        for other in self.people:
            locked, paid, _, _ = world.tab(name, other)
            _, credit, drawn, _ = world.tab(other, name)
            total += locked - paid + (credit - drawn)
        return total + (world.tokens(f"{name} payout") if name in OWNERS else 0)

    def send(self, who: str, contract: Any, function: str, *arguments: Any, by: str = "") -> Sent:
        """Sends a transaction. `by` pays its gas, if that is not the account of the key."""
        sent = self.world.send(who, contract, function, *arguments)
        self.gas[by or who] = self.gas.get(by or who, 0) + sent.gas
        return sent

    def owes(self, payer: str, payee: str, amount: int) -> None:
        """Work was done for which the payer owes this to the payee."""
        self.due[payer] = self.due.get(payer, 0) - amount
        self.due[payee] = self.due.get(payee, 0) + amount

    def voucher(self, payer: str, payee: str, cumulative: int) -> Any:
        key = f"{payer} statement" if payer == K else f"{payer} session"
        return self.world.voucher(payer, payee, cumulative, key)

    def redeem(self, who: str, payee: str, *vouchers: Any, by: str = "") -> None:
        call = (account(payee), ZERO_HASH, [], list(vouchers))
        self.send(who, self.world.escrow, "redeem", *call, by=by)

    def later(self, days: float) -> None:
        self.world.evm.travel(int(days * DAY))

    def act(self, kept: Sequence[Side] = ()) -> Act:
        """What came of it. `kept`: what honest accounts lost beside tokens that they own."""
        sides = {
            name: Side(
                self.before[name] + self.due.get(name, 0) - self.wealth(name), self.gas.get(name, 0)
            )
            for name in self.people
        }
        honest = [side for name, side in sides.items() if name not in self.authors]
        return Act((*honest, *kept), tuple(sides[name] for name in self.authors))


# --------------------------------------------------------------------------------------- vouchers


def stale_voucher() -> Act:
    """A stranger sends an older voucher first, and the newest again and again."""
    play = Play()
    play.owes("client0", K, 9 * USD)
    for cumulative in (3 * USD, 9 * USD, 9 * USD, 3 * USD):
        play.redeem(THIEF, K, play.voucher("client0", K, cumulative))
    return play.act()


def over_lock() -> Act:
    """A client signs more than it locked and gets work for it: 6.65 counts what is locked."""
    play = Play(authors=("client0",))
    play.owes("client0", K, TAB)
    play.redeem(ANY, K, play.voucher("client0", K, 10 * TAB), by="client0")
    return play.act()


def voucher_payroll_voucher() -> Act:
    """An owner shows its voucher before and after the payroll that pays the same."""
    play = Play(authors=("owner0",))
    play.owes(K, "owner0", 4 * USD)
    play.redeem("owner0", "owner0", play.voucher(K, "owner0", 3 * USD))
    pays = [pair("owner0", 4 * USD)]
    play.send(f"{K} posting", play.world.escrow, "payroll", account(K), ZERO_HASH, pays, by="-")
    play.redeem("owner0", "owner0", play.voucher(K, "owner0", 4 * USD))
    return play.act()


def newer_session() -> Act:
    """A client shows another session with a smaller bound before its coordinator redeems."""
    play = Play(authors=("client0",))
    play.owes("client0", K, 9 * USD)
    other = play.world.session("client0", up_to=1, key="client0 other")
    play.send("client0", play.world.escrow, "redeem", account(K), ZERO_HASH, [other], [])
    play.redeem(ANY, K, play.voucher("client0", K, 9 * USD), by="-")
    return play.act()


def ended_session() -> Act:
    """A client lets its session end. Its voucher counts for a week more."""
    play = Play(authors=("client0",))
    play.owes("client0", K, 9 * USD)
    play.later(30 + 6.9)
    play.redeem(ANY, K, play.voucher("client0", K, 9 * USD), by="-")
    return play.act()


def two_machines() -> Act:
    """A client signs with one key on two machines, each of which knows half of what it owes."""
    play = Play(authors=("client0",))
    play.owes("client0", K, 9 * USD)
    for cumulative in (5 * USD, 4 * USD, 9 * USD):
        play.redeem(ANY, K, play.voucher("client0", K, cumulative), by="client0")
    return play.act()


def restored_payer(payer: str, payee: str) -> Act:
    """Who was restored from a backup signs less than before. The older voucher is still paid."""
    play = Play(authors=(payer,))
    play.owes(payer, payee, 4 * USD)
    play.redeem(ANY, payee, play.voucher(payer, payee, USD), by=payer)
    play.redeem(ANY, payee, play.voucher(payer, payee, 4 * USD), by="-")
    return play.act()


def puppet_relay() -> Act:
    """A stranger redeems before the payee does, so that no root stands beside it."""
    play = Play()
    play.owes("client0", K, 9 * USD)
    play.redeem(THIEF, K, play.voucher("client0", K, 9 * USD))
    return play.act()


# ------------------------------------------------------------------------------- closing and tabs


def outrun_by_close(days: float, owed: int) -> Act:
    """A client closes its tab at once after a job. The coordinator redeems within the week."""
    play = Play(authors=("client0",))
    play.owes("client0", K, owed)
    play.send("client0", play.world.escrow, "close", account(K))
    play.later(days)
    play.redeem(f"{K} posting", K, play.voucher("client0", K, owed), by=K)
    play.later(7.1)
    play.send("client0", play.world.escrow, "finish", account("client0"), account(K))
    return play.act()


def closed_on_owners(days: float, owed: int) -> Act:
    """A coordinator closes all guarantees at once. Each owner redeems, also days later."""
    play = Play(authors=(K,))
    for owner in OWNERS:
        play.owes(K, owner, owed)
        play.send(K, play.world.escrow, "close", account(owner))
    play.later(days)
    for owner in OWNERS:
        play.redeem(owner, owner, play.voucher(K, owner, owed))
    play.later(14.1)
    for owner in OWNERS:
        play.send(K, play.world.escrow, "finish", account(K), account(owner))
    return play.act()


def reopened_tab() -> Act:
    """A client ends its tab, opens it again, and old vouchers come back."""
    play = Play(authors=(THIEF,))
    play.owes("client0", K, 9 * USD)
    play.redeem(ANY, K, play.voucher("client0", K, 9 * USD), by="-")
    play.send("client0", play.world.escrow, "close", account(K), by="-")
    play.later(7.1)
    play.send(ANY, play.world.escrow, "finish", account("client0"), account(K), by="-")
    play.send("client0", play.world.escrow, "deposit", TAB, account(K), by="-")
    play.redeem(THIEF, K, play.voucher("client0", K, 9 * USD), play.voucher("client0", K, USD))
    return play.act()


def dust_tabs(count: int) -> Act:
    """Tabs with next to nothing for a coordinator. It redeems none that is not worth its gas."""
    play = Play()
    play.send(THIEF, play.world.escrow, "lock", account(K), 1)
    for _ in range(count - 1):
        play.gas[THIEF] += 45_000
    return play.act()


def dust_credit() -> Act:
    """A stranger draws an owner's smallest credit for it."""
    play = Play()
    play.owes(K, "owner0", USD // 100)
    play.redeem(THIEF, "owner0", play.voucher(K, "owner0", USD // 100))
    play.send(THIEF, play.world.escrow, "draw", account("owner0"), [account(K)])
    return play.act()


def foreign_lock() -> Act:
    """A stranger locks its own money for an owner, in the coordinator's place."""
    play = Play()
    play.send(THIEF, play.world.escrow, "lock", account("owner0"), USD)
    return play.act()


def sybil_guarantees(count: int) -> Act:
    """Owners with one slot each take the first guarantee, and work for nobody."""
    play = Play()
    kept = count * GUARANTEE / A_YEAR * 14 / 365
    staked = count * SLOT_STAKE / A_YEAR * 21 / 365
    act = play.act([Side(kept, count * 25_600)])
    return Act(act.honest, (Side(staked, count * 250_000),))


# --------------------------------------------------------------------- keys, requests, and limits


def locks_do_not_eat_payrolls() -> Act:
    """A thief locks a day's limit for an owner; the payroll of the day goes out all the same."""
    play = Play()
    poster, locks = f"{K} posting", [pair("owner0", LIMIT)]
    play.owes(K, "owner0", LIMIT)
    play.send(poster, play.world.escrow, "lock_many", account(K), locks, by=THIEF)
    pays = [pair("owner0", LIMIT)]
    play.send(poster, play.world.escrow, "payroll", account(K), ZERO_HASH, pays, by="-")
    kept = Side(LIMIT / A_YEAR * 14 / 365)
    return play.act([kept])


def payroll_twice() -> Act:
    """A payroll comes twice, as after a reorganisation."""
    play = Play()
    play.owes(K, "owner0", 9 * USD)
    for _ in range(2):
        pays = [pair("owner0", 9 * USD)]
        call = (account(K), ZERO_HASH, pays)
        play.send(f"{K} posting", play.world.escrow, "payroll", *call, by="-")
    return play.act()


# ------------------------------------------------------------------------------- sleep and halts


def asleep_client() -> Act:
    """A coordinator redeems while its client sleeps: never more than was signed."""
    play = Play(authors=(K,))
    play.owes("client0", K, 9 * USD)
    play.redeem(K, K, play.voucher("client0", K, 9 * USD))
    play.later(6)
    return play.act()


# -------------------------------------------------------------------------------------- tokens


def blacklisted_payee() -> Act:
    """The token refuses one owner. It is passed over, and the next one is paid."""
    world = hostile()
    world.send(ANY, world.token, "block_account", account("owner0"), True)
    payees = [account("owner0"), account("owner1")]
    more = world.send(ANY, world.escrow, "draw_many", account(K), payees).gas
    assert world.tokens("owner1") == 7 * USD
    least = 60_000  # for the other one alone
    return Act((Side(0, more - least),), (Side(5 * USD),))  # what the token keeps from it


# ------------------------------------------------------------------------------------- admitted


def stolen_posting_key(function: str) -> Act:
    """Two days' limit around a midnight."""
    play = Play()
    for day in range(2):
        poster, amount = f"{K} posting", LIMIT * (day + 1)
        if function == "payroll":
            call: tuple[Any, ...] = (account(K), ZERO_HASH, [pair(THIEF, amount)])
        else:
            call = (account("client0"), account(K), LIMIT)
        play.send(poster, play.world.escrow, function, *call, by=THIEF)
        play.later(1)
    if function == "give_back":
        play.owes("client0", K, TAB)  # it had vouched all, and its coordinator came too late
        play.authors = (THIEF, "client0")
    return play.act()


def stolen_statement_key() -> Act:
    """The guarantee of an owner that colludes."""
    play = Play(authors=("owner0", THIEF))
    play.redeem("owner0", "owner0", play.voucher(K, "owner0", 10**12))
    return play.act()


def stolen_session_key() -> Act:
    """A client's whole tab goes to its coordinator alone, which can give it back."""
    play = Play()
    play.redeem(THIEF, K, play.voucher("client0", K, TAB))
    return play.act()


def vanished_coordinator() -> Act:
    """The lead of its clients, and what owners earned since their last voucher."""
    play = Play(authors=(K,))
    for client in CLIENTS:
        play.redeem(ANY, K, play.voucher(client, K, USD), by="-")
    for owner in OWNERS:
        play.owes(K, owner, USD)  # an owner's trust
    return play.act()


def never_vouches() -> Act:
    """A client takes its credit: fees that it paid before."""
    play = Play(authors=("client0",))
    play.owes("client0", K, USD)
    return play.act()


def asleep_too_long() -> Act:
    """An owner sleeps for 15 days while its coordinator closes, and nobody relays."""
    play = Play(authors=(K,))
    play.owes(K, "owner0", 4 * USD)
    play.send(K, play.world.escrow, "close", account("owner0"))
    play.later(14.1)
    play.send(K, play.world.escrow, "finish", account(K), account("owner0"))
    return play.act()


ACTS: dict[str, Callable[[], Act]] = {
    "a stale voucher, and the newest twice": stale_voucher,
    "a voucher above what is locked": over_lock,
    "voucher, payroll, voucher": voucher_payroll_voucher,
    "a newer session with a smaller bound": newer_session,
    "a session that ends": ended_session,
    "a client with two machines and one key": two_machines,
    "a client restored from a backup": partial(restored_payer, "client0", K),
    "a coordinator restored from a backup": partial(restored_payer, K, "owner0"),
    "a puppet relays first": puppet_relay,
    "a client closes after a job of 9 USD": partial(outrun_by_close, 1, 9 * USD),
    "a client closes; redeemed after 6.9 days": partial(outrun_by_close, 6.9, 9 * USD),
    "a coordinator closes on four owners": partial(closed_on_owners, 1, 4 * USD),
    "a coordinator closes; dust is owed": partial(closed_on_owners, 1, USD // 100),
    "old vouchers on a reopened tab": reopened_tab,
    "a thousand dust tabs": partial(dust_tabs, 1000),
    "a stranger draws dust": dust_credit,
    "a stranger locks for an owner": foreign_lock,
    "a hundred owners take guarantees": partial(sybil_guarantees, 100),
    "a payroll twice, as after a reorganisation": payroll_twice,
    "three days without blocks": partial(outrun_by_close, 3, 9 * USD),
    "owners asleep for 13 days": partial(closed_on_owners, 13, 4 * USD),
    "a client asleep for 6 days": asleep_client,
    "a token that refuses one owner": blacklisted_payee,
}
ADMITTED: dict[str, tuple[int, Callable[[], Act]]] = {
    "a stolen posting key pays itself": (2 * LIMIT, partial(stolen_posting_key, "payroll")),
    "a stolen posting key gives back": (2 * LIMIT, partial(stolen_posting_key, "give_back")),
    "a stolen posting key locks": (USD, locks_do_not_eat_payrolls),
    "a stolen statement key, one owner": (GUARANTEE, stolen_statement_key),
    "a stolen session key": (TAB, stolen_session_key),
    "a coordinator that vanishes": (6 * USD, vanished_coordinator),
    "a client that never vouches": (USD, never_vouches),
    "an owner asleep for 15 days": (4 * USD, asleep_too_long),
}
