"""Signed evidence of one job that several providers executed, as a settlement shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.market import (
    BOSS,
    CLASS,
    COORDINATOR,
    POSTER,
    STATEMENT,
    Key,
    Market,
    _changed,
    key,
    plain_order,
    session_key,
)
from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_contracts.bindings.settlement import (
    JobEvidence,
    Opening,
    SettledExecution,
    ShownCredit,
)
from quorate_contracts.bindings.settlement_events import SettlementOpened
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest
from quorate_protocol.crypto.eip712 import Domain, digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import FullLog, credit_entry
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitReceipt,
    Order,
    Reveal,
    Session,
    Voucher,
)
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Milliseconds,
    Nonce,
    Price,
    PriceTier,
    Round,
    Seconds,
    UnixSeconds,
)

USAGE_MS = 20_000
PRICE = 900_000  # of one hour: 5,000 for the usage above
PAY = 5_000  # of one execution
CLIENT = key("client0")
OWNERS = tuple(key(f"owner{number}").address for number in range(9))


@dataclass(frozen=True)
class Signing:
    """Who signs the evidence of a job, where and when."""

    domain: Domain
    now: int
    client: Key
    session: Key
    coordinator: Address
    statement: Key
    operators: Mapping[Address, Key]


def job(
    world: Market,
    client: Key,
    nonce: int,
    providers: Sequence[Address] = OWNERS[:2],
    answer: bytes = b"answer",
    domain: Domain | None = None,
    first_index: int = 0,
    **changes: object,
) -> JobEvidence:
    """Returns evidence that these providers executed a job with one result.

    `changes` replace fields of any of its messages by name. `domain` is another deployment's.
    """
    signing = Signing(
        domain or world.domain,
        world.evm.now,
        client,
        session_key(client),
        COORDINATOR.address,
        STATEMENT,
        world.operators,
    )
    return signed_job(signing, nonce, providers, answer, first_index, changes)


def signed_job(
    by: Signing,
    nonce: int,
    providers: Sequence[Address],
    answer: bytes,
    first_index: int,
    changes: dict[str, object],
) -> JobEvidence:
    """Returns evidence under these keys; see `job`."""
    terms = Session(
        by.client.address,
        by.session.address,
        by.coordinator,
        Amount(40_000_000),
        UnixSeconds(by.now + 86_400),
    )
    session = seal(by.domain, _changed(terms, changes), by.client.sign)
    order = seal(by.domain, _changed(_order(by, nonce), changes), by.session.sign)
    job_id = digest(by.domain, order.message)
    executions = tuple(
        _execution(by, job_id, provider, index, answer, changes)
        for index, provider in enumerate(providers, first_index)
    )
    return JobEvidence(session, order, executions)


def _order(by: Signing, nonce: int) -> Order:
    return plain_order(by.client.address, by.coordinator, b"spec", UnixSeconds(by.now), nonce)


def _execution(
    by: Signing,
    job_id: Hash32,
    provider: Address,
    index: int,
    answer: bytes,
    changes: dict[str, object],
) -> SettledExecution:
    blind = keccak256(b"blind %d" % index)
    body = Assignment(
        assignment_id=assignment_id(job_id, index, blind),
        coordinator=by.coordinator,
        provider=provider,
        spec_hash=keccak256(b"spec"),
        host_class=CLASS,
        price_tier=PriceTier.ON_DEMAND,
        price_per_hour=Price(PRICE),
        max_duration=Seconds(30),
        accept_by=UnixSeconds(by.now - 40),
    )
    assignment = seal(by.domain, _changed(body, changes), by.statement.sign)
    place = digest(by.domain, assignment.message)
    salt, output = keccak256(b"salt" + provider), keccak256(answer)
    bound = commitment(place, provider, salt, result_digest(ExitStatus(0), output))
    text = keccak256(b"ciphertext" + provider)
    commit = Commit(place, keccak256(b"class"), bound, text, Milliseconds(USAGE_MS), Round(5))
    sign = by.operators.get(provider, key("nobody")).sign
    signed = seal(by.domain, _changed(commit, changes), sign)
    taken = CommitReceipt(digest(by.domain, signed.message), UnixSeconds(by.now - 15))
    receipt = seal(by.domain, _changed(taken, changes), by.statement.sign)
    reveal = Reveal(place, provider, ExitStatus(0), output, salt)
    return SettledExecution(index, blind, assignment, signed, reveal, receipt)


def opened(world: Market, evidence: JobEvidence) -> Opening:
    """Announces a settlement by a stranger."""
    mined = world.evm.send(BOSS.address, world.contracts.settlement.open(evidence))
    (event,) = mined.events
    assert isinstance(event, SettlementOpened)
    return Opening.of(event.opening)


def voucher(world: Market, cumulative: int, nonce_floor: int) -> SignedVoucher:
    body = Voucher(CLIENT.address, COORDINATOR.address, Amount(cumulative), Nonce(nonce_floor))
    session = world.session(CLIENT)
    return SignedVoucher(session, seal(world.domain, body, session_key(CLIENT).sign))


def credits(world: Market, count: int = 3) -> list[int]:
    return [world.evm.ask(world.contracts.escrow.credit_of(account)) for account in OWNERS[:count]]


def credited(world: Market, evidence: JobEvidence, *pays: int) -> list[Leaf]:
    """Posts an epoch whose leaves credit a job's executions."""
    leaves = []
    for each, pay in zip(evidence.executions, pays, strict=True):
        provider = each.assignment.message.provider
        log = FullLog([credit_entry(each.assignment.message.assignment_id, Amount(pay))])
        index = world.evm.ask(world.contracts.stakes.index_of(provider))
        leaves.append(Leaf(index, provider, Amount(pay), Amount(0), log.root()))
    return sorted(leaves, key=lambda leaf: leaf.index)


def shown(leaves: list[Leaf], evidence: JobEvidence, share: int, pay: int) -> ShownCredit:
    message = evidence.executions[share].assignment.message
    leaf, proof = prove(leaves, message.provider)
    log = FullLog([credit_entry(message.assignment_id, Amount(pay))])
    return ShownCredit(1, leaf, proof, Amount(pay), log.prove(0))


def settlement_gas(world: Market) -> dict[str, float]:
    """Measures the gas of one job by its coordinator, of 32 jobs per job, and of what a stranger
    sends: the announcement and its execution.
    """
    settlement, evm = world.contracts.settlement, world.evm
    evm.travel(100)
    clients = [key(f"client{number}") for number in range(3)]
    fee = [Leaf(1, COORDINATOR.address, Amount(3), Amount(0), ZERO_HASH)]
    vouchers = [world.voucher(client, 1_000) for client in clients]
    evm.send(
        POSTER.address, world.contracts.epochs.post(COORDINATOR.address, 1, build(fee), vouchers)
    )

    def single(nonce: int, is_known: bool) -> int:
        call = settlement.settle_job(job(world, CLIENT, nonce), is_known)
        return evm.send(POSTER.address, call).gas

    def many(first: int) -> float:
        pairs = [(OWNERS[k % 9], OWNERS[(k + 1) % 9]) for k in range(32)]
        jobs = [job(world, clients[k % 3], first + k // 3, pairs[k]) for k in range(32)]
        return evm.send(POSTER.address, settlement.settle_many(COORDINATOR.address, jobs)).gas / 32

    found: dict[str, float] = {"settle_single_first": single(0, is_known=False)}
    found["settle_single_new_word"] = single(12, is_known=True)
    found["settle_single"] = single(13, is_known=True)
    many(24)
    found["settle_many32"] = many(36)
    evidence = job(world, CLIENT, 60)
    opening = opened(world, evidence)
    found["settle_open"] = evm.send(
        BOSS.address, settlement.open(job(world, CLIENT, 61), is_session_known=True)
    ).gas
    evm.travel(DEVNET.settle_response)
    found["settle_execute"] = evm.send(BOSS.address, settlement.execute(opening)).gas
    return found
