"""What Stakes keeps for court and coordinators: leaving once, burning, networks, announcements."""

import pytest

from contracts.court_trial import opened_trial
from contracts.court_world import CourtWorld, peopled_court
from contracts.world import CLASS, World, account, market
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.units import ZERO_HASH

SLOT, UNBOND = DEVNET.slot_stake, DEVNET.unbond_after
K, PEER = "coordinator", keccak256(b"peer key")


@pytest.fixture
def world() -> CourtWorld:
    return peopled_court()


@pytest.mark.rule("2.30")
def test_an_account_leaves_once_and_opens_nothing_afterwards(world: CourtWorld) -> None:
    stakes = world.stakes
    world.refused("registered", "stranger", stakes, "exit")
    for who in ("owner0", K):
        world.send(who, stakes, "exit")
        world.refused("exited", who, stakes, "exit")
        world.refused("exited", who, stakes, "top_up", 1)
    world.refused("exited", "owner0", stakes, "open_slots", CLASS, 1)
    world.refused("registered", K, stakes, "open_slots", CLASS, 1)
    world.evm.travel(UNBOND - 1)
    world.refused("early", "owner0", stakes, "unbond_slot", CLASS, 0)
    world.refused("early", K, stakes, "unbond_coordinator")
    world.evm.travel(1)
    before = world.tokens("owner0"), world.tokens(K)
    world.send("owner0", stakes, "unbond_slot", CLASS, 0)
    world.send(K, stakes, "unbond_coordinator")
    assert world.tokens("owner0") - before[0] == SLOT
    assert world.tokens(K) - before[1] == DEVNET.coordinator_bond
    world.refused("exited", "owner0", stakes, "open_slots", CLASS, 1)


def test_nobody_prolongs_the_delay_of_an_account_that_left(world: CourtWorld) -> None:
    trial = opened_trial(world)
    world.send("owner0", world.stakes, "exit")
    world.evm.travel(1)
    left = world.now - 1
    trial.judged()
    trial = opened_trial(world)
    assert trial.judged().taken > 0
    world.evm.now = left + UNBOND
    world.send("owner0", world.stakes, "unbond_slot", CLASS, 0)
    assert world.stake("owner0") == 0


def burn(world: World, who: str, amount: int, reward: int = 0) -> None:
    """The money's world has an account in the place of the court."""
    call = (account(who), who == K, amount, reward, account("sender"))
    world.send("court", world.stakes, "burn", *call)


@pytest.mark.rule("I5", "2.33", "5.66")
@pytest.mark.parametrize("who", ["escrow", "jobs", "token", "stakes", "boss", "owner0", K])
def test_nobody_but_court_and_faults_burns(who: str) -> None:
    money = market()
    money.provider("owner0")
    contract = {
        name.lower().removeprefix("test"): found for name, found in money.contracts.items()
    }.get(who)
    sender = contract.address if contract else account(who)
    for loser in ("owner0", K):
        call = (account(loser), loser == K, 1, 1, account("boss"))
        money.refused("module", sender, money.stakes, "burn", *call)


@pytest.mark.rule("2.33", "5.156")
@pytest.mark.parametrize(("reward", "paid"), [(3, 3), (50, 50), (51, 50)])
def test_a_sender_gets_at_most_half_of_what_is_burned(reward: int, paid: int) -> None:
    money = market()
    burn(money, K, 100, reward)
    assert money.tokens("sender") == paid
    left = money.ask(money.stakes, "bond_of", account(K))
    assert left == DEVNET.coordinator_bond - 100


@pytest.mark.rule("2.30", "6.30")
def test_a_slot_that_a_burn_closed_unbonds_by_itself_and_nothing_prolongs_it() -> None:
    money = market()
    money.provider("owner0", slots=2)
    for amount in (SLOT, 1):
        burn(money, "owner0", amount)
    closed = money.now
    money.evm.travel(10)
    burn(money, "owner0", 1)
    unbond, before = MAINNET.unbond_after, money.tokens("owner0")
    money.evm.now = closed + unbond - 1
    money.refused("early", "owner0", money.stakes, "unbond_slot", CLASS, 0)
    money.evm.now = closed + unbond
    for place in (0, 1):
        money.send("owner0", money.stakes, "unbond_slot", CLASS, place)
    assert money.tokens("owner0") == before + SLOT - 2


def test_a_network_has_at_most_twenty_bytes_and_outlives_an_exit(world: CourtWorld) -> None:
    network = b"\x04\x01\x02\x03".ljust(32, b"\0")
    for wrong, reason in (
        (network[:20] + b"\1" + network[21:], "network"),
        (network[:31] + b"\1", "network"),
        (ZERO_HASH, "zero"),
    ):
        world.refused(reason, "owner0", world.stakes, "change_network", wrong)
    world.send("owner0", world.stakes, "change_network", network)
    changed = world.now
    world.refused("early", "owner0", world.stakes, "change_network", network)
    world.send("owner0", world.stakes, "exit")
    at = changed + DEVNET.profile_delay
    assert world.ask(world.stakes, "network_of", account("owner0")) == network
    assert world.ask(world.stakes, "profile_changes", account("owner0")) == (0, at)
    for moment, is_new in ((at - 1, False), (at, True)):
        found = world.ask(world.stakes, "profile_at", account("owner0"), moment)[1]
        assert (found == network) == is_new
    assert world.ask(world.stakes, "out_block", account("owner0")) == world.evm.number
    world.evm.travel(2 * DEVNET.profile_delay)
    world.send("owner0", world.stakes, "change_network", network)
    assert world.ask(world.stakes, "slot", CLASS, 0)[5] == world.evm.number - 1


@pytest.mark.rule("3.53")
def test_only_the_posting_key_of_a_coordinator_with_a_bond_announces(world: CourtWorld) -> None:
    told = b"/ip4/203.0.113.7/tcp/7701"
    for who in (K, f"{K} statement", "boss"):
        world.refused("signer", who, world.stakes, "announce", account(K), PEER, told)
    world.refused("signer", "boss", world.stakes, "announce", account("boss"), PEER, told)
    sent = world.send(f"{K} posting", world.stakes, "announce", account(K), PEER, told)
    event = sent.one("Announced")
    assert (event.coordinator, event.peerKey, event.addresses) == (account(K), PEER, told)
    world.send(K, world.stakes, "exit")
    world.evm.travel(UNBOND)
    world.send(K, world.stakes, "unbond_coordinator")
    arguments = (account(K), PEER, told)
    world.refused("registered", f"{K} posting", world.stakes, "announce", *arguments)


def test_a_party_counts_once_among_the_owners(world: CourtWorld) -> None:
    zero, one, two = (account(f"owner{number}") for number in range(3))
    for parties, owners in (
        ((zero, one, two), 6),
        ((zero, zero, one), 7),
        ((zero, one, one), 7),
        ((one, zero, one), 7),
        ((account("accuser"), zero, one), 7),
        ((zero, zero, zero), 8),
    ):
        assert world.ask(world.stakes, "owners_apart", CLASS, list(parties)) == (owners, 9)
