"""A small market on one machine: a deployment, keys, providers, clients, a coordinator, signed
evidence.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import coincurve
from msgspec import Struct

from contracts.evm import GENESIS_TIME, SECRETS, Evm, chain_kind
from quorate_contracts.bindings.court import CaseExecution, CaseJob, CaseRun
from quorate_contracts.bindings.epochs import SignedVoucher
from quorate_contracts.deploy import Contracts, Plan, plan
from quorate_protocol.crypto.commitment import assignment_id, commitment, result_digest
from quorate_protocol.crypto.eip712 import Domain, digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import root_of_path
from quorate_protocol.limits import DEVNET, USD, Limits
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Assignment, Commit, Order, Reveal, Session, Voucher
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Bps,
    Comparator,
    ExitStatus,
    Hash32,
    Milliseconds,
    Nonce,
    Price,
    PriceTier,
    Round,
    Seconds,
    Signature,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from quorate_runtime.beacon.bls import beacon_round, keygen, public_key

CHAIN_ID = 31337
SECRET = keygen(b"contract tests, local beacon")
CLASS = keccak256(b"host class")
START = 10**12  # token units of each account


@dataclass(frozen=True)
class Key:
    """A secp256k1 key with its address."""

    secret: bytes
    address: Address

    def sign(self, message: Hash32) -> Signature:
        raw = coincurve.PrivateKey(self.secret).sign_recoverable(message, hasher=None)
        return Signature(raw[:64] + bytes([27 + raw[64]]))


@lru_cache(maxsize=1024)
def key(label: str) -> Key:
    """Returns the key that belongs to a label, always the same one."""
    secret = keccak256(label.encode())
    public = coincurve.PrivateKey(secret).public_key.format(compressed=False)
    made = Key(secret, Address(keccak256(public[1:])[12:]))
    SECRETS[made.address] = secret
    return made


BOSS = key("boss")
COORDINATOR = key("coordinator")
STATEMENT = key("statement key")
POSTER = key("posting key")
ACCUSER = key("accuser")


@dataclass
class Market:
    """What the contract tests need: keys by label, makers of evidence, and the balances for I1."""

    evm: Evm
    contracts: Contracts
    limits: Limits
    serial: int = 0
    supply: int = 0
    holders: set[Address] = field(default_factory=set)
    operators: dict[Address, Key] = field(default_factory=dict)
    ordered_from: tuple[Key, Key] = (COORDINATOR, STATEMENT)  # by `execution`: who signs with what

    @property
    def domain(self) -> Domain:
        return self.contracts.deployment.domain()

    def fork(self) -> "Market":
        """Returns an independent copy."""
        return dataclasses.replace(
            self, evm=self.evm.fork(), holders=set(self.holders), operators=dict(self.operators)
        )

    def fund(self, who: Key) -> Key:
        """Gives an account tokens, and approves every contract that pulls tokens."""
        c = self.contracts
        if who.address not in self.holders:
            self.holders.add(who.address)
            self.supply += START
            self.evm.send(who.address, c.token.mint(who.address, Amount(START)))
            spenders = (c.stakes, c.escrow, c.court)
            for spender in (contract.address for contract in spenders):
                self.evm.send(who.address, c.token.approve(spender))
        return who

    def provider(self, number: int, slots: int = 1, host_class: Hash32 = CLASS) -> Address:
        """Registers provider `number` with its own payout address, network and slots."""
        owner, operator, payout = (
            self.fund(key(f"owner{number}")),
            key(f"operator{number}"),
            key(f"payout{number}"),
        )
        peer, box = keccak256(b"peer"), keccak256(b"box")
        network = Hash32(bytes(31) + bytes([number + 1]))
        self.evm.send(
            owner.address,
            self.contracts.stakes.register(operator.address, payout.address, peer, box, network),
        )
        if slots:
            self.evm.send(owner.address, self.contracts.stakes.open_slots(host_class, slots))
        self.operators[owner.address] = operator
        return owner.address

    def coordinator(self) -> None:
        """Registers the only coordinator."""
        self.fund(COORDINATOR)
        self.evm.send(
            COORDINATOR.address,
            self.contracts.stakes.register_coordinator(STATEMENT.address, POSTER.address),
        )

    def client(self, number: int, amount: int = 50 * USD) -> Key:
        """Registers client `number` with an allocation."""
        who = self.fund(key(f"client{number}"))
        self.evm.send(who.address, self.contracts.escrow.deposit(Amount(amount)))
        self.evm.send(
            who.address, self.contracts.escrow.allocate(COORDINATOR.address, Amount(amount))
        )
        return who

    def balance(self, account: Address) -> int:
        return self.evm.ask(self.contracts.token.balance_of(account))

    def held_by_contracts(self) -> int:
        c = self.contracts
        return sum(self.balance(each.address) for each in (c.stakes, c.escrow, c.court, c.faults))

    def session(
        self,
        client: Key,
        up_to: int = 40 * USD,
        expires: int | None = None,
        signer: Key | None = None,
        coordinator: Key = COORDINATOR,
    ) -> Envelope[Session]:
        until = self.evm.now + 86_400 if expires is None else expires
        body = Session(
            client.address,
            session_key(client).address,
            coordinator.address,
            Amount(up_to),
            UnixSeconds(until),
        )
        return seal(self.domain, body, (signer or client).sign)

    def voucher(
        self, client: Key, cumulative: int, coordinator: Key = COORDINATOR, **session: int
    ) -> SignedVoucher:
        body = Voucher(client.address, coordinator.address, Amount(cumulative))
        return SignedVoucher(
            self.session(client, coordinator=coordinator, **session),
            seal(self.domain, body, session_key(client).sign),
        )

    def execution(
        self, provider: Address, client: Key, answer: bytes = b"answer", **changes: Any
    ) -> "Evidence":
        """Returns signed evidence of one execution that looks honest.

        `changes` replace fields of any of its messages by name. `order` is a signed order for it.
        With a `path` the Assignment's specHash is only one of those under the order's.
        """
        self.serial += 1
        return Evidence.make(self, provider, client, answer, changes)

    def prove(self, number: Round) -> int:
        """Submits a beacon round and moves the clock past it; returns the gas."""
        info = self.contracts.deployment.beacon_info()
        self.evm.now = max(self.evm.now, info.genesis_time + (number - 1) * info.period)
        return self.evm.send(
            BOSS.address, self.contracts.beacon.submit(beacon_round(SECRET, number))
        ).gas


def session_key(client: Key) -> Key:
    return key("session of " + client.address.hex())


class Evidence(Struct, frozen=True):
    """An execution with the reveals that open it, and the one that contradicts it."""

    shown: CaseExecution
    reveal: Reveal
    other: Reveal
    assignment_hash: Hash32

    @classmethod
    def make(
        cls, market: Market, provider: Address, client: Key, answer: bytes, changes: dict[str, Any]
    ) -> "Evidence":
        asked = _changed(_order(market, client), changes)
        path, element = changes.get("path", ()), asked.spec_hash
        asked = replace(asked, spec_hash=root_of_path(element, path))
        order = changes.get("order") or seal(market.domain, asked, session_key(client).sign)
        job = CaseJob(market.session(client, coordinator=market.ordered_from[0]), order)
        if path:
            changes = {"spec_hash": element} | changes
        run, reveal = executed(market, order.message, provider, answer, changes)
        shared = {name: value for name, value in changes.items() if name in SHARED}
        other, opened = executed(market, order.message, witness_of(provider), TRUE, shared)
        shown = CaseExecution(job, run, other, path)
        return cls(shown, reveal, opened, reveal.assignment_hash)

    def against(
        self, market: Market, answer: bytes, provider: Address | None = None, **changes: Any
    ) -> "Evidence":
        """Returns the same execution, contradicted by this answer of `provider`."""
        run = self.shown.run.assignment.message
        shared = {name: getattr(run, name) for name in SHARED}
        by = witness_of(run.provider) if provider is None else provider
        other, reveal = executed(market, self.shown.job.order.message, by, answer, shared | changes)
        return replace(self, shown=replace(self.shown, contradiction=other), other=reveal)

    @property
    def digest(self) -> Hash32:
        """Returns the result digest of the accused."""
        return result_digest(self.reveal.exit_status, self.reveal.output_digest)


TRUE = b"what honest providers found"
SHARED = ("host_class", "accept_by", "max_duration", "coordinator", "spec_hash")


def witness_of(accused: Address) -> Address:
    """Returns the provider whose result contradicts the accused's."""
    return next(key(name).address for name in ("owner1", "owner2") if key(name).address != accused)


def executed(
    market: Market, order: Order, provider: Address, answer: bytes, changes: dict[str, Any]
) -> tuple[CaseRun, Reveal]:
    """Returns signed evidence that a provider executed an order, and the reveal that opens it."""
    blind = keccak256(b"blind %d" % market.serial + provider)
    job = digest(market.domain, order)
    body = Assignment(
        assignment_id=assignment_id(job, 1, blind),
        coordinator=order.coordinator,
        provider=provider,
        spec_hash=order.spec_hash,
        host_class=CLASS,
        price_tier=order.price_tier,
        price_per_hour=Price(2 * USD),
        max_duration=Seconds(30),
        accept_by=UnixSeconds(market.evm.now - 1),
    )
    assignment = seal(market.domain, _changed(body, changes), market.ordered_from[1].sign)
    place = digest(market.domain, assignment.message)
    salt, output = keccak256(b"salt %d" % market.serial + provider), keccak256(answer)
    status = changes.get("exit_status", ExitStatus(0))
    bound = commitment(place, provider, salt, result_digest(status, output))
    commit = Commit(
        place,
        keccak256(b"determinism class"),
        bound,
        keccak256(b"ciphertext"),
        Milliseconds(20_000),
        Round(5),
    )
    signer = market.operators.get(provider, key("nobody"))
    signed = seal(market.domain, _changed(commit, changes), signer.sign)
    reveal = Reveal(place, provider, status, output, salt)
    return CaseRun(1, blind, assignment, signed), reveal


def _order(market: Market, client: Key) -> Order:
    spec = b"spec %d" % market.serial
    now = UnixSeconds(market.evm.now)
    coordinator = market.ordered_from[0].address
    return plain_order(client.address, coordinator, spec, now, market.serial)


def plain_order(
    client: Address, coordinator: Address, spec: bytes, now: UnixSeconds, nonce: int
) -> Order:
    """Returns an order that a jury could judge, valid for an hour from `now`."""
    return Order(
        client=client,
        coordinator=coordinator,
        spec_hash=keccak256(spec),
        input_root=keccak256(b"inputs"),
        terms_hash=OrderTerms().digest(),
        price_tier=PriceTier.ON_DEMAND,
        max_price_per_hour=Price(3 * USD),
        budget=Amount(USD),
        max_duration=Seconds(600),
        max_executions=Small(7),
        audit_premium_bps=Bps(500),
        max_fee_bps=Bps(300),
        verify_tier=VerifyTier.STANDARD,
        comparator=Comparator.EXACT,
        caseable=True,
        host_class=ZERO_HASH,
        witness=ZERO_ADDRESS,
        accept_unwitnessed=False,
        accept_unverified=False,
        sealed_key_hash=ZERO_HASH,
        max_recipients=Small(0),
        expiry=UnixSeconds(now + 3600),
        nonce=Nonce(nonce),
    )


def _changed(message, changes):  # type: ignore[no-untyped-def]
    return replace(
        message,
        **{
            name: value
            for name, value in changes.items()
            if name in type(message).__struct_fields__
        },
    )


def planned(limits: Limits) -> Plan:
    """Returns a deployment plan of BOSS. The beacon started well before the chain."""
    info = BeaconInfo(public_key(SECRET), limits.beacon_period, GENESIS_TIME - 10_000)
    return plan(BOSS.address, 0, CHAIN_ID, BlockNumber(1), limits, info, True)


@lru_cache(maxsize=4)
def _deployed(limits: Limits, kind: str) -> Market:
    return deployed_on(Evm.fresh(), limits)


def deployed_on(evm: Evm, limits: Limits) -> Market:
    """Deploys the contracts on a machine, and returns the market with its coordinator."""
    made = planned(limits)
    for creation in made.creations:
        evm.create(creation, BOSS.address)
    contracts = Contracts.of(made.deployment)
    evm.contracts = contracts
    market = Market(evm, contracts, limits)
    market.coordinator()
    market.fund(ACCUSER)
    return market


def market(limits: Limits = DEVNET) -> Market:
    """Returns a fresh market with its coordinator. Each process deploys once and forks the
    result.
    """
    return _deployed(limits, chain_kind()).fork()


@lru_cache(maxsize=8)
def _peopled(limits: Limits, providers: int, kind: str) -> Market:
    return peopled_on(market(limits), providers)


def peopled_on(made: Market, providers: int) -> Market:
    """Registers providers of one host class and three clients."""
    for number in range(providers):
        made.provider(number)
    for number in range(3):
        made.client(number)
    made.evm.travel(10)
    return made


def peopled(limits: Limits = DEVNET, providers: int = 9) -> Market:
    """Returns a market with providers of one host class and three clients."""
    return _peopled(limits, providers, chain_kind()).fork()
