"""I11 before Jobs: acts around orders with an escrow of their own; see `griefing_money`."""

from collections.abc import Callable, Sequence

from contracts.funded import FundedOrder
from contracts.griefing import Act
from contracts.griefing_money import ANY, OWNERS, THIEF, K, Play
from contracts.world import account
from quorate_protocol.limits import DAY, USD


def _funded(play: Play) -> FundedOrder:
    order = FundedOrder(play.world, "client1")
    call = (order.job_id, 6 * USD, play.world.now + 20 * DAY)
    play.send("client1", play.world.jobs, "fund", *call, by="-")
    play.later(2 / 24)
    return order


def _settled(play: Play, order: FundedOrder, owners: Sequence[str]) -> None:
    """Owners show what they have, and somebody lets the job be paid."""
    play.later(2)
    listed = sorted(account(each) for each in owners)
    play.send(ANY, play.world.jobs, "pay", order.values, listed, by="-")


def _run(play: Play, order: FundedOrder, owner: str, *answer: bytes, by: str = "-") -> None:
    play.send(ANY, play.world.jobs, "show", order.values, order.run(owner, *answer), by=by)


def _pays(play: Play, *owners: str) -> None:
    """Half an hour at 2 USD for each owner, and the coordinator's fee of 3 %."""
    for owner in owners:
        play.owes("client1", owner, USD)
        play.owes("client1", K, USD * 3 // 100)


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
    "usage beyond the clock": over_budget,
    "a lie in the last second": last_second,
    "an owner shows 13 days late": asleep_member,
    "a stolen posting key releases": stolen_release,
    "a stranger funds the same order": funded_by_another,
}
ADMITTED: dict[str, tuple[int, Callable[[], Act]]] = {
    "an owner shows what it did not reveal": (USD, silent_owner),
    "a coordinator and two owners invent": (6 * USD, invented_results),
}
