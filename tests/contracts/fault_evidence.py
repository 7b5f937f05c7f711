"""Makes the signed messages that prove a fault, and sends the proofs."""

from collections.abc import Callable

from contracts.market import STATEMENT, Evidence, Key, Market, key
from quorate_protocol.crypto.commitment import secret_hash
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Ack, Commit
from quorate_protocol.units import BlockNumber, Bps, Hash32, Label, Sequence, UnixSeconds
from quorate_protocol.values import replace

SECRET_X = keccak256(b"secret x")
SENDER = key("anybody")


def provers_market(make: Callable[[], Market]) -> Market:
    """Returns a market in which SENDER has tokens."""
    world = make()
    world.fund(SENDER)
    return world


def other_commit(world: Market, found: Evidence, signer: Key | None = None) -> Envelope[Commit]:
    """Returns a second Commit of the same provider for the same assignment."""
    body = replace(found.shown.run.commit.message, commitment=keccak256(b"another result"))
    provider = found.shown.run.assignment.message.provider
    return seal(world.domain, body, (signer or world.operators[provider]).sign)


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


def faults_money(world: Market) -> None:
    """Asserts that Faults holds exactly credits, and what was burned."""
    c, evm = world.contracts, world.evm
    accounts = [
        evm.ask(c.stakes.account_at(i + 1)) for i in range(evm.ask(c.stakes.account_count()))
    ]
    credits = sum(evm.ask(c.faults.credit_of(each)) for each in {*accounts, SENDER.address})
    assert world.balance(c.faults.address) == credits + evm.ask(c.faults.burned())
