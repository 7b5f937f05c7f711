"""A small market on one machine: a whole deployment with typed calls, keys, and providers.

The tests of money and court have another one, `world`, whose contracts a mutant replaces.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache

import coincurve

from contracts.evm import GENESIS_TIME, SECRETS, Evm, chain_kind
from quorate_contracts.deploy import Contracts, Plan, plan
from quorate_contracts.encodings import round_proof
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD, Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, Round, Signature
from quorate_runtime.keys.bls import beacon_round, keygen, public_key

CHAIN_ID = 31337
SECRET = keygen(b"contract tests, local beacon")
CLASS = keccak256(b"pool")
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
    """What the tests of the registry need."""

    evm: Evm
    contracts: Contracts
    limits: Limits
    holders: set[Address] = field(default_factory=set)
    operators: dict[Address, Key] = field(default_factory=dict)

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
            self.evm.send(who.address, c.token.mint(who.address, Amount(START)))
            for spender in (c.stakes.address, c.escrow.address):
                self.evm.send(who.address, c.token.approve(spender, Amount(2**256 - 1)))
        return who

    def provider(self, number: int, slots: int = 1, pool: Hash32 = CLASS) -> Address:
        """Registers provider `number` with its own payout address, network and slots."""
        owner, operator, payout = (
            self.fund(key(f"owner{number}")),
            key(f"operator{number}"),
            key(f"payout{number}"),
        )
        peer, box = keccak256(b"peer"), keccak256(b"box")
        network = Hash32(b"\x04" + number.to_bytes(3, "big") + bytes(28))
        self.evm.send(
            owner.address,
            self.contracts.stakes.register(operator.address, payout.address, peer, box, network),
        )
        if slots:
            self.evm.send(owner.address, self.contracts.stakes.open_slots(pool, slots))
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
        """Client `number`, with money in its tab for the coordinator."""
        who = self.fund(key(f"client{number}"))
        deposit = self.contracts.escrow.deposit(Amount(amount), COORDINATOR.address)
        self.evm.send(who.address, deposit)
        return who

    def balance(self, account: Address) -> int:
        return self.evm.ask(self.contracts.token.balance_of(account))

    def staked(self) -> int:
        """The stakes and bonds of all that registered."""
        stakes, bond = self.contracts.stakes, self.contracts.stakes.bond_of(COORDINATOR.address)
        asked = [bond, *(stakes.stake_of(owner) for owner in self.operators)]
        return sum(self.evm.ask(query) for query in asked)

    def prove(self, number: Round) -> int:
        """Submits a beacon round and moves the clock past it; returns the gas."""
        info = self.contracts.deployment.beacon_info()
        self.evm.now = max(self.evm.now, info.genesis_time + (number - 1) * info.period)
        proof = round_proof(beacon_round(SECRET, number))
        return self.evm.send(BOSS.address, self.contracts.beacon.submit(number, proof)).gas


def network(name: bytes) -> Hash32:
    """A network as registrations name it."""
    return Hash32(keccak256(name)[:7].ljust(32, b"\0"))


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
    """Registers providers of one pool and three clients."""
    for number in range(providers):
        made.provider(number)
    for number in range(3):
        made.client(number)
    made.evm.travel(10)
    return made


def peopled(limits: Limits = DEVNET, providers: int = 9) -> Market:
    """Returns a market with providers of one pool and three clients."""
    return _peopled(limits, providers, chain_kind()).fork()
