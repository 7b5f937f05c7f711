"""Attacks by epochs and by challenges, run to their ends under mainnet's rules."""

from contracts.challenged import only_the_coordinator
from contracts.epoch_leaves import CLIENT, OWNERS, C, leaves, post
from contracts.fault_evidence import provers_market
from contracts.griefing_accounts import Damage, Grievance, grievance
from contracts.griefing_court import world
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key
from quorate_contracts.bindings.calls import Call
from quorate_protocol.limits import MAINNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, prove

SENDER = key("anybody").address
ROBBED = OWNERS[0]
COORDINATORS = frozenset({COORDINATOR.address, POSTER.address})


def _market() -> tuple[Market, list[Leaf]]:
    """Returns a market with an honest first epoch that is not final."""
    made = provers_market(world)
    made.evm.send(SENDER, made.contracts.token.approve(made.contracts.challenges.address))
    credits = leaves(made, 3 * USD, 2 * USD)
    post(made, 1, credits, made.voucher(CLIENT, 6 * USD))
    return made, credits


def _pay(grief: Grievance, call: Call) -> None:
    """Sends what the coordinator has to send."""
    grief.charge(lambda: grief.world.evm.send(BOSS.address, call), [C])


def false_challenge() -> Damage:
    """Somebody demands a leaf that the epoch has, in the last second of the window."""
    made, credits = _market()
    with grievance(made, {SENDER}) as grief:
        challenges = made.contracts.challenges
        made.evm.travel(MAINNET.challenge_window - 1)
        signed = made.statement(ROBBED, 3 * USD)
        wrong = challenges.challenge_statement(C, 1, signed, *prove(credits, ROBBED))
        grief.fail(SENDER, wrong)
        made.evm.send(SENDER, challenges.demand_leaf(C, 1, signed))
        made.evm.travel(MAINNET.challenge_response)
        _pay(grief, challenges.answer(C, 1, ROBBED, 1, *prove(credits, ROBBED)))
        return grief.ended()


def demanded_epoch() -> Damage:
    """Somebody demands the epoch that the coordinator posts tomorrow anyway."""
    made, credits = _market()
    with grievance(made, {SENDER}) as grief:
        challenges = made.contracts.challenges
        made.evm.send(SENDER, challenges.demand_epoch(C, made.statement(ROBBED, USD, epoch=2)))
        made.evm.travel(MAINNET.halt_after)
        grief.charge(lambda: post(made, 2, credits), [POSTER.address])
        grief.gas.pop(POSTER.address)  # it posts in any case
        made.evm.travel(MAINNET.challenge_window)
        _pay(grief, challenges.close_epoch_demand(C))
        return grief.ended()


def robbing_epoch() -> Damage:
    """A coordinator pays itself what it stated to others; a watcher of one of them challenges."""
    made, _ = _market()
    with grievance(made, COORDINATORS) as grief:
        stolen = only_the_coordinator(6 * USD)
        post(made, 2, stolen)
        challenges = made.contracts.challenges
        made.evm.send(SENDER, challenges.demand_leaf(C, 2, made.statement(ROBBED, 3 * USD)))
        made.evm.travel(MAINNET.challenge_response + 1)
        made.evm.send(SENDER, challenges.close_demand(C, 2, ROBBED))
        return grief.ended()


def vanished_coordinator() -> Damage:
    """A coordinator vanishes owing more than its last epoch shows; somebody halts it."""
    made, credits = _market()
    with grievance(made, COORDINATORS) as grief:
        challenges, owed = made.contracts.challenges, made.statement(ROBBED, 4 * USD, epoch=2)
        made.evm.send(SENDER, challenges.demand_epoch(C, owed))
        made.evm.travel(MAINNET.halt_after + 1)
        made.evm.send(SENDER, challenges.halt(C))
        grief.work[ROBBED] += USD  # what it earned and no epoch shows
        made.evm.send(ROBBED, challenges.file(C, owed))
        made.evm.travel(MAINNET.challenge_window)
        made.evm.send(ROBBED, challenges.credit_filing(C, *prove(credits, ROBBED)))
        made.evm.travel(MAINNET.halt_settle + MAINNET.challenge_response)
        made.evm.send(ROBBED, challenges.take_share(C, ROBBED))
        return grief.ended()
