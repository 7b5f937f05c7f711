"""What happens when a coordinator is gone for good, or when a key is stolen.

Everybody gets out what is its own by its own transactions (I3, I4), and a thief moves no more than
its key may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate_protocol.limits import DAY
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.tabs import Pay
from quorate_protocol.units import Address, Amount
from sim.chain import OWN, POSTING
from sim.escrow import Coordinator, Escrow
from sim.parties import DOMAIN, key
from sim.plan import Behaviour

if TYPE_CHECKING:
    from sim.world import World

AWAY_SECONDS = 120  # redemption (20 s), a client's closing (60 s), and the depth of blocks
FUNDED_SECONDS = 240
THIEF = key("stranger", 2).address


def get_everything_out(world: World) -> None:
    """The coordinator never comes back. Clients close their tabs, owners redeem and draw."""
    world.coverage.facts["coordinators that vanished"] += 1
    for client in world.clients:
        client.is_abandoned = True
        client.close_tab()
    world.schedule.run(AWAY_SECONDS + (FUNDED_SECONDS if world.clients[0].funded else 0))
    for provider in world.providers:
        _owner_has_its_pay(world, provider.number)
    for client in world.clients:
        account = client.account.address
        jobs = world.chain.jobs.jobs.items()
        left_over = [job for (payer, _), job in jobs if payer == account and not job.is_over]
        assert not left_over, f"I4: {left_over} is left of funded orders"
        client.withdraw()
        tab, left = world.chain.escrow.tabs[account, OWN], world.chain.escrow.balances[account]
        assert not tab.free and not left, f"I4: a client left {tab.free} and {left} behind"
        assert tab.paid <= client.signed, "I4: a client paid what it never signed"
    world.chain.check()


def _owner_has_its_pay(world: World, number: int) -> None:
    """I3: an owner loses held pay, jobs since its last voucher, and nothing else."""
    provider = world.providers[number]
    if not provider.is_up:
        return
    tab, debt = world.chain.escrow.tabs[OWN, provider.owner], provider.core.debt(OWN)
    assert tab.paid >= min(debt.vouched, tab.locked), (
        f"I3: {provider.name} has a voucher over {debt.vouched}, and was paid {tab.paid}"
    )
    assert tab.drawn == tab.paid, f"I3: {provider.name} has not drawn {tab.paid - tab.drawn}"
    lost = debt.earned - max(tab.paid, debt.vouched)
    assert lost <= debt.held, f"I3: {provider.name} lost {lost}"
    world.coverage.facts["owners that lost pay with their coordinator"] += (
        debt.earned > tab.paid and provider.planned is Behaviour.HONEST
    )


def play_thieves(world: World) -> None:
    """Each thief acts on a copy of the chain's books, at a midnight."""
    now = (world.chain.now // DAY + 1) * DAY - 1
    _thief_of_posting_key(world.chain.escrow.copy(), now)
    _thief_of_statement_key(world.chain.escrow.copy(), now)
    for client in world.clients:
        _thief_of_session_key(world, world.chain.escrow.copy(), client.number, now)


def _thief_of_posting_key(books: Escrow, now: int) -> None:
    """It moves two days' limits, around a midnight, and nothing that is another's."""
    limit = 1_000
    known = books.coordinators[OWN]
    books.coordinators[OWN] = Coordinator(POSTING, known.statements, limit, limit)
    books.spent.clear()
    books.deposit(OWN, 10 * limit)
    tabs, before = dict(books.tabs), _all_of(books, OWN)
    for at in (now, now, now + 1, now + 1):
        paid = books.tabs[OWN, THIEF].paid
        _tries(
            books,
            lambda b, at=at, paid=paid: b.payroll(  # type: ignore[misc]
                POSTING, OWN, [Pay(THIEF, Amount(paid + limit))], at
            ),
        )
        _tries(books, lambda b, at=at: b.lock_many(POSTING, OWN, {THIEF: limit}, at))  # type: ignore[misc]
    lost = before - _all_of(books, OWN)
    assert 0 < lost <= 4 * limit, f"I11: a posting key moved {lost}, with a limit of {limit}"
    assert all(books.tabs[place] == tab for place, tab in tabs.items()), "I11: others' tabs changed"
    books.check(None)


def _thief_of_statement_key(books: Escrow, now: int) -> None:
    """It takes the guarantee of an accomplice, and what no tab has locked stays."""
    guarantee = 500
    books.deposit(OWN, 10 * guarantee)
    books.lock(OWN, THIEF, guarantee)
    balance = books.balances[OWN]
    voucher = Voucher(OWN, THIEF, Amount(10**9))
    _tries(
        books,
        lambda b: b.redeem(THIEF, [(seal(DOMAIN, voucher, key("statement").sign), None)], now),
    )
    assert books.draw(THIEF) == guarantee and books.balances[OWN] == balance, (
        "I11: a statement key moved more than an accomplice's guarantee"
    )
    books.check(None)


def _thief_of_session_key(world: World, books: Escrow, number: int, now: int) -> None:
    """It pays the client's own coordinator, up to the session's limit, and nobody else."""
    client = world.clients[number]
    account = client.account.address
    books.deposit(account, 10**9)
    before = {place: tab for place, tab in books.tabs.items() if place != (account, OWN)}
    balance = books.balances[account]
    for payee in (OWN, THIEF):
        _tries(
            books,
            lambda b, payee=payee: b.redeem(  # type: ignore[misc]
                payee, [(_by_session(client.session_key.sign, account, payee), None)], now
            ),
        )
    limit = client.session().up_to
    assert books.tabs[account, OWN].paid <= max(limit, client.signed), "I11: above the session"
    assert balance == books.balances[account], "I11: a session key moved a balance"
    assert before == {place: tab for place, tab in books.tabs.items() if place in before}
    assert not books.tabs[account, THIEF].paid, "I11: a session key paid somebody else"
    books.check(None)


def _by_session(sign: object, account: Address, payee: Address) -> Envelope[Voucher]:
    return seal(DOMAIN, Voucher(account, payee, Amount(10**12)), sign)  # type: ignore[arg-type]


def _all_of(books: Escrow, account: Address) -> int:
    """What a payer has: its balance, and what its tabs have not paid."""
    tabs = sum(tab.free for (payer, _), tab in books.tabs.items() if payer == account)
    return books.balances[account] + tabs - books.tabs[account, THIEF].free


def _tries(books: Escrow, act: object) -> None:
    try:
        act(books)  # type: ignore[operator]
    except Refused:
        pass  # what the contract refuses moves nothing
