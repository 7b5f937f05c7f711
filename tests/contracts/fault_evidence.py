"""Makes the signed messages that prove a fault, and sends the proofs."""

from collections.abc import Callable

from contracts.market import COORDINATOR, STATEMENT, Evidence, Key, Market, key
from quorate_protocol.crypto.commitment import secret_hash
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import USD
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Ack, Commit, CommitEntry, CommitSet, Statement
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    Hash32,
    Label,
    Ppm,
    Round,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace

SECRET_X = keccak256(b"secret x")
SENDER = key("anybody")


def provers_market(make: Callable[[], Market]) -> Market:
    """Returns a market in which SENDER has tokens, and Faults may pull them."""
    world = make()
    world.fund(SENDER)
    call = world.contracts.token.approve(world.contracts.faults.address)
    world.evm.send(SENDER.address, call)
    return world


def other_commit(world: Market, found: Evidence, signer: Key | None = None) -> Envelope[Commit]:
    """Returns a second Commit of the same provider for the same assignment."""
    body = replace(found.shown.run.commit.message, commitment=keccak256(b"another result"))
    provider = found.shown.run.assignment.message.provider
    return seal(world.domain, body, (signer or world.operators[provider]).sign)


def commit_set(world: Market, found: Evidence, signer: Key = STATEMENT) -> Envelope[CommitSet]:
    """Returns a CommitSet of three entries that holds the commit."""
    commit = found.shown.run.commit.message
    provider = found.shown.run.assignment.message.provider
    mine = CommitEntry(found.assignment_hash, provider, digest(world.domain, commit))
    other = CommitEntry(keccak256(b"a"), key("another").address, keccak256(b"b"))
    body = CommitSet(
        job_id=digest(world.domain, found.shown.job.order.message),
        batch=Small(0),
        ordered=(other, mine, other),
        blinds=(keccak256(b"1"), found.shown.run.blind, keccak256(b"3")),
        beacon_round=Round(7),
        secret=SECRET_X,
        audit_ppm=Ppm(1_000_000),
        slots=(Small(3), Small(5)),
        skips_hash=ZERO_HASH,
        witness_hash=ZERO_HASH,
        closed_at=UnixSeconds(world.evm.now),
    )
    return seal(world.domain, body, signer.sign)


def ack(world: Market, job: Hash32, epoch: int = 1, signer: Key = STATEMENT) -> Envelope[Ack]:
    """Returns an Ack that was signed now."""
    body = Ack(
        job_id=job,
        host_class=keccak256(b"class"),
        ack_time=UnixSeconds(world.evm.now),
        slot_block=BlockNumber(3),
        eligible_root=keccak256(b"eligible"),
        state_root=keccak256(b"state"),
        log_root=keccak256(b"log"),
        log_length=Sequence(4),
        secret_hash=secret_hash(SECRET_X),
        rule=Label.ADAPTIVE,
        fee_bps=Bps(300),
        epoch=Sequence(epoch),
    )
    return seal(world.domain, body, signer.sign)


def statement(
    world: Market, provider: Address, final: int, seq: int = 5, signer: Key = STATEMENT
) -> Envelope[Statement]:
    """Returns a Statement over `final` USD."""
    sums = (Amount(final * USD), Amount(0), Sequence(1), Sequence(seq))
    return seal(world.domain, Statement(provider, *sums, keccak256(b"receipts")), signer.sign)


def frozen(world: Market, account: Address = COORDINATOR.address) -> int:
    """Returns how many cases and demands keep an account's stake."""
    return world.evm.ask(world.contracts.stakes.frozen(account))


def faults_money(world: Market, open_demands: int = 0) -> None:
    """Asserts that Faults holds exactly bonds of demands, credits, and what was burned."""
    c, evm = world.contracts, world.evm
    accounts = [
        evm.ask(c.stakes.account_at(i + 1)) for i in range(evm.ask(c.stakes.account_count()))
    ]
    credits = sum(evm.ask(c.faults.credit_of(each)) for each in {*accounts, SENDER.address})
    held = credits + evm.ask(c.faults.burned()) + open_demands * world.limits.jury_gas_fee
    assert world.balance(c.faults.address) == held
