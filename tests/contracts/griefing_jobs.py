"""I11 before Jobs: acts around orders with an escrow of their own; see `griefing_money`."""

from collections.abc import Callable, Sequence
from typing import Any

from contracts.funded import FundedOrder
from contracts.griefing import Act
from contracts.griefing_money import ANY, OWNERS, THIEF, K, Play
from contracts.world import account
from quorate_protocol.limits import DAY, USD


def _funded(play: Play, **changes: Any) -> FundedOrder:
    order = FundedOrder(play.world, "client1", changes=changes)
    call = (order.job_id, 6 * USD, play.world.now + 20 * DAY)
    play.send("client1", play.world.jobs, "fund", *call, by="-")
    play.later(2 / 24)
    return order


def _settled(play: Play, order: FundedOrder, owners: Sequence[str], wait: float = 2) -> None:
    """Owners show what they have, and somebody lets the job be paid."""
    play.later(wait)
    listed = sorted(account(each) for each in owners)
    play.send(ANY, play.world.jobs, "pay", order.values, listed, by="-")


def _run(play: Play, order: FundedOrder, owner: str, *answer: bytes, by: str = "-") -> None:
    play.send(ANY, play.world.jobs, "show", order.values, order.run(owner, *answer), by=by)


def _returned(play: Play, order: FundedOrder, days: int = 21) -> None:
    """Nothing was paid, and the client has its budget again."""
    play.later(days)
    call = (account("client1"), order.job_id)
    play.send(ANY, play.world.jobs, "reclaim", *call, by="-")


def _pays(play: Play, *owners: str) -> None:
    """Half an hour at 2 USD for each owner, and the coordinator's fee of 3 %."""
    for owner in owners:
        play.owes("client1", owner, USD)
        play.owes("client1", K, USD * 3 // 100)


def shown_again() -> Act:
    play = Play()
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    _run(play, order, "owner0")
    shown = (order.values, order.run("owner0"))
    play.refused("shown", THIEF, play.world.jobs, "show", *shown)
    _run(play, order, "owner1")
    _settled(play, order, OWNERS[:2])
    return play.act()


def copied_run() -> Act:
    """An owner commits after it saw a result on chain."""
    play = Play(authors=("owner3",))
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    _run(play, order, "owner0")
    play.later(1 / 24)
    copied = order.run("owner3", time=play.world.now - 1)
    play.refused("copied", "owner3", play.world.jobs, "show", order.values, copied)
    _run(play, order, "owner1")
    _settled(play, order, OWNERS[:2])
    return play.act()


def unstaked_owners() -> Act:
    play = Play()
    order = _funded(play)
    for _ in range(2):
        shown = (order.values, order.run(THIEF))
        play.refused("stake", THIEF, play.world.jobs, "show", *shown)
    _returned(play, order)
    return play.act()


def invented_assignment() -> Act:
    """Two owners sign an Assignment themselves."""
    play = Play(authors=("owner2", "owner3"))
    order = _funded(play)
    for owner in ("owner2", "owner3"):
        run = order.run(owner, by_statement=f"{owner} operator")
        play.refused("assignment", owner, play.world.jobs, "show", order.values, run)
    _returned(play, order)
    return play.act()


def old_evidence() -> Act:
    """Executions and keys of 300 days ago."""
    play = Play(authors=("owner2",))
    order = FundedOrder(play.world, "client1")
    until = play.world.now + 390 * DAY
    play.send("client1", play.world.jobs, "fund", order.job_id, 6 * USD, until, by="-")
    play.later(300)
    shown = (order.values, order.run("owner2"))
    play.refused("old", "owner2", play.world.jobs, "show", *shown)
    _returned(play, order, 91)
    return play.act()


def over_budget() -> Act:
    """Owners state a whole day of usage: time and price of the order bound it."""
    play = Play(authors=("owner0", "owner1"))
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    for owner in OWNERS[:2]:
        run = order.run(owner, usageMs=DAY * 1000, time=order.accept_by + 30 * 60 - 120)
        play.send(ANY, play.world.jobs, "show", order.values, run, by=owner)
    _settled(play, order, OWNERS[:2])
    return play.act()


def last_second() -> Act:
    """A liar shows its result in the last second of the window."""
    play = Play(authors=("owner3",))
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    for owner in OWNERS[:2]:
        _run(play, order, owner)
    play.later(0.999)
    _run(play, order, "owner3", b"lie", by="owner3")
    _settled(play, order, (*OWNERS[:2], "owner3"))
    return play.act()


def asleep_member() -> Act:
    """An owner shows its execution 13 days late. The first waits for it, and both are paid."""
    play = Play(authors=(K,))
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    _run(play, order, "owner0")
    play.later(13)
    _run(play, order, "owner1")
    _settled(play, order, OWNERS[:2])
    return play.act()


def early_reclaim() -> Act:
    """A client takes its budget back while owners have not shown anything yet."""
    play = Play(authors=("client1",))
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    call = (account("client1"), order.job_id)
    play.refused("early", "client1", play.world.jobs, "reclaim", *call)
    for owner in OWNERS[:2]:
        _run(play, order, owner)
    _settled(play, order, OWNERS[:2])
    return play.act()


def foreign_release() -> Act:
    play = Play()
    order = _funded(play)
    play.refused("signer", THIEF, play.world.jobs, "release", order.values)
    _returned(play, order)
    return play.act()


def stolen_release() -> Act:
    """A thief of the posting key releases a job that ran. Owners that see it have a window."""
    play = Play()
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    play.send(f"{K} posting", play.world.jobs, "release", order.values, by=THIEF)
    for owner in OWNERS[:2]:
        _run(play, order, owner)
    _settled(play, order, OWNERS[:2])
    return play.act()


def funded_by_another() -> Act:
    """A stranger funds the digest of another client's order with dust."""
    play = Play()
    order = _funded(play)
    call = (order.job_id, 1, play.world.now + DAY)
    play.send(THIEF, play.world.jobs, "fund", *call)
    play.before[THIEF] -= 1  # which it takes back by `reclaim`
    _pays(play, "owner0", "owner1")
    for owner in OWNERS[:2]:
        _run(play, order, owner)
    _settled(play, order, OWNERS[:2])
    return play.act()


def left_out() -> Act:
    """The sender of a pay leaves one owner out of the list."""
    play = Play()
    order = _funded(play)
    _pays(play, *OWNERS[:3])
    for owner in OWNERS[:3]:
        _run(play, order, owner)
    play.later(2)
    listed = sorted(account(each) for each in OWNERS[:2])
    play.refused("count", THIEF, play.world.jobs, "pay", order.values, listed)
    _settled(play, order, OWNERS[:3])
    return play.act()


def paid_again() -> Act:
    play = Play()
    order = _funded(play)
    _pays(play, "owner0", "owner1")
    for owner in OWNERS[:2]:
        _run(play, order, owner)
    _settled(play, order, OWNERS[:2])
    listed = sorted(account(each) for each in OWNERS[:2])
    play.refused("over", THIEF, play.world.jobs, "pay", order.values, listed)
    return play.act()


def invented_results() -> Act:
    """A coordinator and two owners invent a result of a funded order."""
    play = Play(authors=(K, "owner2", "owner3"))
    order = _funded(play)
    for owner in ("owner2", "owner3"):
        _run(play, order, owner, b"invented", by=owner)
    _settled(play, order, ("owner2", "owner3"))
    return play.act()


def silent_owner() -> Act:
    """An owner reveals nothing to its coordinator and shows its execution on chain at once. The
    owner that the coordinator asks in its place commits too late to be paid here.
    """
    play = Play(authors=("owner1",))
    order = _funded(play)
    _pays(play, "owner0", "owner2")
    _run(play, order, "owner1", by="owner1")
    play.later(1 / 24)
    late = order.run("owner2", time=play.world.now - 1)
    play.world.refused("copied", ANY, play.world.jobs, "show", order.values, late)
    _run(play, order, "owner0")
    _settled(play, order, OWNERS[:2])
    return play.act()


ACTS: dict[str, Callable[[], Act]] = {
    "evidence shown again": shown_again,
    "a copied execution": copied_run,
    "executions without stake": unstaked_owners,
    "an Assignment by its own owners": invented_assignment,
    "evidence of 300 days ago": old_evidence,
    "usage beyond the clock": over_budget,
    "a lie in the last second": last_second,
    "an owner shows 13 days late": asleep_member,
    "a budget taken back early": early_reclaim,
    "a stranger releases": foreign_release,
    "a stolen posting key releases": stolen_release,
    "a stranger funds the same order": funded_by_another,
    "an owner left out of the pay": left_out,
    "a job paid twice": paid_again,
}
ADMITTED: dict[str, tuple[int, Callable[[], Act]]] = {
    "an owner shows what it did not reveal": (USD, silent_owner),
    "a coordinator and two owners invent": (6 * USD, invented_results),
}
