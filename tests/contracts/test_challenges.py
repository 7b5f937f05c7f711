"""Tests challenges of epochs: what a coordinator signed or showed before is shown against it, and
what it withholds is demanded.
"""

import pytest

from contracts.challenged import (
    FEE,
    PENALTY,
    RESPONSE,
    ROBBED,
    WATCHER,
    WINDOW,
    bond_of,
    credit_of,
    newest_valid,
    only_the_coordinator,
    payout,
    posted,
    poster_call,
    send,
)
from contracts.epoch_leaves import CLIENT, OWNERS, C, claim, leaves, post
from contracts.evm import refused
from contracts.market import BOSS, POSTER, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.challenges import Demand
from quorate_contracts.bindings.events import DemandClosed, EpochsVoided, LeafDemanded, Punished
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, prove
from quorate_protocol.units import ZERO_ADDRESS, Amount, UnixSeconds


@pytest.mark.rule("6.15", "6.40")
def test_an_epoch_below_a_statement_is_void_and_its_vouchers_count_again() -> None:
    world, credits = posted(400, 300)
    challenges, statement = world.contracts.challenges, world.statement(ROBBED, 500)
    call = challenges.challenge_statement(C, 1, statement, *prove(credits, ROBBED))
    world.evm.travel(WINDOW - 1)
    events = send(world, call).events
    assert EpochsVoided(C, 1, 1, 0) in events
    assert Punished(C, ROBBED, 1, Amount(PENALTY), Amount(100)) in events
    assert bond_of(world) == DEVNET.coordinator_bond - PENALTY
    assert (credit_of(world, WATCHER), credit_of(world, payout(0))) == (FEE, 100)
    assert world.evm.ask(challenges.burned()) == PENALTY - FEE - 100
    money(world)
    # The number is used, and the client owes nothing again: its voucher is still in the pool
    refused(world.evm, "epoch", POSTER.address, poster_call(world, 1, credits))
    full = leaves(world, 500, 300)
    post(world, 2, full)
    world.evm.travel(WINDOW)
    claim(world, 2, full, ROBBED)
    assert world.balance(payout(0)) == 500
    send(world, challenges.withdraw(payout(0)))
    assert world.balance(payout(0)) == 600
    refused(world.evm, "amount", WATCHER, challenges.withdraw(payout(0)))
    money(world)


@pytest.mark.rule("6.40", "6.41")
def test_statements_that_an_epoch_keeps_void_nothing() -> None:
    world, credits = posted(400, 300)
    challenge, proof = world.contracts.challenges.challenge_statement, prove(credits, ROBBED)
    for statement, reason in (
        (world.statement(ROBBED, 400), "covered"),
        (world.statement(ROBBED, 401, epoch=2), "epoch"),  # promised for the next epoch
        (world.statement(OWNERS[1], 401), "account"),
        (world.statement(ROBBED, 401, signer=key("somebody")), "signer"),
        (world.statement(ROBBED, 401, signer=POSTER), "signer"),
    ):
        refused(world.evm, reason, WATCHER, challenge(C, 1, statement, *proof))
    short = world.statement(ROBBED, 401)
    forged = prove([*credits[:-1], Leaf(1, C, Amount(4), Amount(0), bytes(32))], ROBBED)
    refused(world.evm, "proof", WATCHER, challenge(C, 1, short, *forged))
    refused(world.evm, "epoch", WATCHER, challenge(C, 2, short, *proof))
    fork = world.fork()
    fork.evm.travel(WINDOW - 1)
    send(fork, challenge(C, 1, short, *proof))
    for seconds in (WINDOW, WINDOW + 1):
        fork = world.fork()
        fork.evm.travel(seconds)
        refused(fork.evm, "late", WATCHER, challenge(C, 1, short, *proof))


@pytest.mark.rule("6.40")
def test_a_statement_of_a_rotated_key_still_binds() -> None:
    world, credits = posted(400)
    send(world, world.contracts.stakes.rotate_key(key("new statement key").address), C)
    world.evm.travel(5)
    call = world.contracts.challenges.challenge_statement(
        C, 1, world.statement(ROBBED, 401), *prove(credits, ROBBED)
    )
    send(world, call)
    assert newest_valid(world).number == 0


@pytest.mark.rule("6.41")
@pytest.mark.parametrize("held", [100, 99])
def test_only_an_epoch_without_money_may_show_a_stated_credit_as_held(held: int) -> None:
    world = peopled()
    index = world.evm.ask(world.contracts.stakes.index_of(ROBBED))
    leaf = Leaf(index, ROBBED, Amount(400), Amount(held), bytes(32))
    post(world, 1, [leaf], world.voucher(CLIENT, 400))
    assert newest_valid(world).is_exhausted
    statement = world.statement(ROBBED, 500)
    call = world.contracts.challenges.challenge_statement(C, 1, statement, *prove([leaf], ROBBED))
    if held == 100:
        refused(world.evm, "covered", WATCHER, call)
        richer = peopled()  # the same with a unit more in the pool
        post(richer, 1, [leaf], richer.voucher(CLIENT, 401))
        send(richer, call)
    else:
        send(world, call)


@pytest.mark.rule("6.5", "6.42")
def test_a_leaf_that_falls_voids_its_epoch() -> None:
    world, first = posted(400, 300)
    second = leaves(world, 399, 301)  # one sybil's credit shifted to another: the sums are equal
    post(world, 2, second)
    challenge = world.contracts.challenges.challenge_leaf
    old, new = prove(first, ROBBED), prove(second, ROBBED)
    refused(world.evm, "epoch", WATCHER, challenge(C, 1, old, 2, new))
    refused(world.evm, "epoch", WATCHER, challenge(C, 2, new, 2, new))
    refused(world.evm, "account", WATCHER, challenge(C, 2, prove(second, OWNERS[1]), 1, old))
    raised = challenge(C, 2, prove(second, OWNERS[1]), 1, prove(first, OWNERS[1]))
    refused(world.evm, "covered", WATCHER, raised)
    world.evm.travel(WINDOW - 1)
    late = world.fork()
    late.evm.travel(1)
    refused(late.evm, "late", WATCHER, challenge(C, 2, new, 1, old))
    events = send(world, challenge(C, 2, new, 1, old)).events
    assert EpochsVoided(C, 2, 2, 1) in events
    assert Punished(C, ROBBED, 2, Amount(PENALTY), Amount(1)) in events
    world.evm.travel(1)
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 1
    claim(world, 1, first, ROBBED)
    money(world)


@pytest.mark.rule("6.15", "6.43")
def test_an_epoch_with_one_leaf_that_takes_everything_pays_nobody() -> None:
    world = peopled()
    theft = only_the_coordinator(USD)
    post(world, 1, theft, world.voucher(CLIENT, USD))
    challenges, statement = world.contracts.challenges, world.statement(ROBBED, 500)
    by = UnixSeconds(world.evm.now + RESPONSE)
    events = send(world, challenges.demand_leaf(C, 1, statement)).events
    assert LeafDemanded(C, ROBBED, 1, Amount(500), by) in events
    assert world.evm.ask(challenges.demand(C, 1, ROBBED)) == Demand(Amount(500), by, WATCHER)
    refused(world.evm, "phase", WATCHER, challenges.demand_leaf(C, 1, statement))
    close = challenges.close_demand(C, 1, ROBBED)
    for _ in range(2):  # RESPONSE - 1 and RESPONSE
        world.evm.now = by - 1 if world.evm.now < by - 1 else by
        refused(world.evm, "early", WATCHER, close)
    world.evm.travel(1)
    events = send(world, close).events
    assert EpochsVoided(C, 1, 1, 0) in events and DemandClosed(C, ROBBED, 1, False) in events
    assert credit_of(world, WATCHER) == 2 * FEE  # its bond and its gas
    assert credit_of(world, payout(0)) == 500
    world.evm.travel(WINDOW)
    call = world.contracts.epochs.claim(C, 1, *prove(theft, C))
    refused(world.evm, "early", BOSS.address, call)
    money(world)


@pytest.mark.rule("6.19", "6.43")
def test_claims_wait_while_a_demand_is_open_and_an_answer_ends_it() -> None:
    world, credits = posted(400, 300)
    challenges = world.contracts.challenges
    send(world, challenges.demand_leaf(C, 1, world.statement(ROBBED, 400)))
    world.evm.travel(RESPONSE)
    post(world, 2, credits)
    answer = challenges.answer(C, 1, ROBBED, 1, *prove(credits, ROBBED))
    late = world.fork()
    late.evm.travel(1)
    refused(late.evm, "late", BOSS.address, answer)
    late.evm.travel(WINDOW)
    for number in (1, 2):  # unanswered: neither the epoch nor its successor is final
        call = late.contracts.epochs.claim(C, number, *prove(credits, C))
        refused(late.evm, "early", BOSS.address, call)
    assert late.evm.ask(late.contracts.epochs.newest_final(C)).number == 0
    send(late, challenges.close_demand(C, 1, ROBBED))
    assert newest_valid(late).number == 0
    other = challenges.answer(C, 1, OWNERS[1], 1, *prove(credits, OWNERS[1]))
    refused(world.evm, "phase", BOSS.address, other)
    wrong = challenges.answer(C, 1, ROBBED, 1, *prove(credits, OWNERS[1]))
    refused(world.evm, "account", BOSS.address, wrong)
    assert DemandClosed(C, ROBBED, 1, True) in send(world, answer, BOSS.address).events
    assert credit_of(world, C) == FEE
    refused(world.evm, "phase", BOSS.address, answer)
    world.evm.travel(WINDOW)
    claim(world, 2, credits, ROBBED)
    money(world)


@pytest.mark.rule("6.43")
def test_a_demand_can_be_answered_by_a_later_epoch_that_pays() -> None:
    world = peopled()
    index = world.evm.ask(world.contracts.stakes.index_of(ROBBED))
    lacking = Leaf(index, ROBBED, Amount(400), Amount(100), bytes(32))
    post(world, 1, [lacking], world.voucher(CLIENT, 400))
    challenges = world.contracts.challenges
    send(world, challenges.demand_leaf(C, 1, world.statement(ROBBED, 500)))
    answer = challenges.answer(C, 1, ROBBED, 1, *prove([lacking], ROBBED))
    refused(world.evm, "amount", BOSS.address, answer)
    whole = Leaf(index, ROBBED, Amount(500), Amount(0), bytes(32))
    post(world, 2, [whole], world.voucher(CLIENT, 500))
    send(world, challenges.answer(C, 1, ROBBED, 2, *prove([whole], ROBBED)))
    world.evm.travel(WINDOW)
    claim(world, 2, [whole], ROBBED)
    money(world)


@pytest.mark.rule("6.43")
def test_all_pay_taken_as_fees_and_the_rest_held_is_void_unless_it_is_paid() -> None:
    """An epoch without money left may show stated credits as held. A thief cannot live by that."""
    world = peopled()
    index = world.evm.ask(world.contracts.stakes.index_of(ROBBED))
    theft = [*only_the_coordinator(USD), Leaf(index, ROBBED, Amount(0), Amount(500), bytes(32))]
    post(world, 1, theft, world.voucher(CLIENT, USD))
    challenges, statement = world.contracts.challenges, world.statement(ROBBED, 500)
    shown = challenges.challenge_statement(C, 1, statement, *prove(theft, ROBBED))
    refused(world.evm, "covered", WATCHER, shown)
    send(world, challenges.demand_leaf(C, 1, statement))
    refused(
        world.evm, "amount", BOSS.address, challenges.answer(C, 1, ROBBED, 1, *prove(theft, ROBBED))
    )
    world.evm.travel(RESPONSE + 1)
    send(world, challenges.close_demand(C, 1, ROBBED))
    assert newest_valid(world).number == 0


@pytest.mark.rule("6.43")
def test_withheld_data_of_a_client_is_demanded_by_its_older_leaf() -> None:
    world, first = posted(400, 300)
    post(world, 2, only_the_coordinator(USD))
    challenges, old = world.contracts.challenges, prove(first, OWNERS[1])
    refused(world.evm, "epoch", WATCHER, challenges.demand_old_leaf(C, 1, 1, *old))
    send(world, challenges.demand_old_leaf(C, 2, 1, *old))
    world.evm.travel(RESPONSE + 1)
    send(world, challenges.close_demand(C, 2, OWNERS[1]))
    assert newest_valid(world).number == 1
    world.evm.travel(WINDOW)
    claim(world, 1, first, OWNERS[1])
    money(world)


@pytest.mark.rule("6.43")
@pytest.mark.parametrize(("seconds", "is_late"), [(WINDOW - 1, 0), (WINDOW, 1), (WINDOW + 1, 1)])
def test_a_leaf_is_demanded_within_the_window(seconds: int, is_late: int) -> None:
    world, _ = posted(400)
    world.evm.travel(seconds)
    call = world.contracts.challenges.demand_leaf(C, 1, world.statement(ROBBED, 500))
    if is_late:
        refused(world.evm, "late", WATCHER, call)
    else:
        send(world, call)


@pytest.mark.rule("6.44")
def test_a_void_epoch_takes_its_successors_and_their_demands_along() -> None:
    world, credits = posted(400, 300)
    challenges = world.contracts.challenges
    post(world, 2, credits)
    post(world, 3, leaves(world, 400, 301))
    send(world, challenges.demand_leaf(C, 3, world.statement(OWNERS[1], 301)))
    send(world, challenges.demand_leaf(C, 1, world.statement(OWNERS[2], 1)))
    short = world.statement(ROBBED, 401, epoch=2)
    send(world, challenges.challenge_statement(C, 2, short, *prove(credits, ROBBED)))
    assert newest_valid(world).number == 1
    assert world.evm.ask(world.contracts.epochs.newest(C)) == 3
    # The demand of the void epoch ends with its bond back, and opens nothing
    events = send(world, challenges.close_demand(C, 3, OWNERS[1]), BOSS.address).events
    assert DemandClosed(C, OWNERS[1], 3, False) in events
    assert credit_of(world, WATCHER) == 2 * FEE
    head = world.evm.ask(world.contracts.epochs.head(C))
    assert (head.newest, head.valid, head.demands, head.floor) == (3, 1, 1, 1)
    post(world, 4, leaves(world, 401, 301))
    world.evm.travel(RESPONSE + 1)
    send(world, challenges.close_demand(C, 1, OWNERS[2]))
    assert newest_valid(world).number == 0
    assert world.evm.ask(world.contracts.epochs.head(C)).demands == 0
    money(world)


@pytest.mark.rule("6.46")
def test_a_thief_of_the_posting_key_loses_its_epoch_after_a_key_change_in_the_same_window() -> None:
    world, credits = posted(400, 300)
    world.evm.travel(WINDOW)
    theft = only_the_coordinator(USD)
    post(world, 2, theft)
    send(world, world.contracts.stakes.change_posting_key(key("new poster").address), C)
    refused(world.evm, "signer", POSTER.address, poster_call(world, 3, theft))
    challenges = world.contracts.challenges
    refused(world.evm, "epoch", BOSS.address, challenges.revoke(2))  # not its epoch
    robbed, owned = world.fork(), world.fork()
    call = challenges.demand_old_leaf(C, 2, 1, *prove(credits, ROBBED))
    send(robbed, call)
    robbed.evm.travel(RESPONSE + 1)
    send(robbed, challenges.close_demand(C, 2, ROBBED))
    assert newest_valid(robbed).number == 1
    owned.evm.travel(WINDOW - 1)
    assert (
        Punished(C, ZERO_ADDRESS, 2, Amount(PENALTY), Amount(0))
        in send(owned, challenges.revoke(2), C).events
    )
    assert newest_valid(owned).number == 1
    owned.evm.travel(2)
    claim(owned, 1, credits, ROBBED)
    money(owned)
    world.evm.travel(WINDOW)
    refused(world.evm, "late", C, challenges.revoke(2))


@pytest.mark.rule("6.15")
def test_a_coordinator_below_half_its_bond_posts_no_epoch() -> None:
    world, credits = posted(400)
    number = 1
    for number in range(2, 8):
        send(world, world.contracts.challenges.revoke(number - 1), C)
        if bond_of(world) * 2 < DEVNET.coordinator_bond:
            break
        post(world, number, credits)
    assert number == 7
    refused(world.evm, "bond", POSTER.address, poster_call(world, number, credits))


@pytest.mark.rule("6.45")
def test_void_epochs_in_a_row_leave_the_last_good_one_claimable() -> None:
    world, credits = posted(400)
    world.evm.travel(WINDOW)
    for number in range(2, 258):
        post(world, number, credits)
    send(world, world.contracts.challenges.revoke(2, successors=255), C)
    epochs = world.contracts.epochs
    assert world.evm.ask(epochs.newest_final(C)).number == newest_valid(world).number == 1
    claim(world, 1, credits, ROBBED)
    more = leaves(world, 401)
    post(world, 258, more)
    fallen = only_the_coordinator(300)
    refused(world.evm, "stale", POSTER.address, poster_call(world, 259, fallen))
    world.evm.travel(WINDOW)
    claim(world, 258, more, ROBBED)
