"""The contracts of the money on one machine: accounts by label, sessions, vouchers, requests.

An account is named by its label everywhere: "client0" signs its vouchers to the coordinator with
the session key "client0 session", an owner "owner0" commits with "owner0 operator".
"""

import dataclasses
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import coincurve
import pytest

from contracts import calls
from contracts.calls import Contract, Happened, creation
from contracts.evm import CHAIN_ID, NOBODY, SECRETS, Log, PyEvm, Reverted
from quorate_contracts.abi_codec import encode
from quorate_contracts.deploy import created_address
from quorate_contracts.generated.gas_bounds import BOUNDS, gas_of
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_HASH, Address, Hash32

CLIENT_CLOSE, COORDINATOR_CLOSE = 7 * DAY, 14 * DAY
EVIDENCE_WINDOW, EVIDENCE_AGE = DAY, 14 * DAY
SLOT_STAKE, BOND = 100 * USD, 1000 * USD
STAKES_LIMITS = ("slotStake", "coordinatorBond", "unbondAfter", "profileDelay")
CLASS = keccak256(b"pool")
GAS = 16_000_000  # of a transaction: less than the cap of a chain
SESSION = (
    "Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)"
)
VOUCHER = "Voucher(address payer,address payee,uint128 cumulative)"
ORDER = (
    "Order(address client,address coordinator,bytes32 specHash,bytes32 inputRoot,bytes32 termsHash,"
    "uint8 priceTier,uint128 maxPricePerHour,uint128 budget,uint64 maxDuration,uint8 maxExecutions,"
    "uint16 auditPremiumBps,uint16 maxFeeBps,uint8 verifyTier,uint8 comparator,bool caseable,"
    "bytes32 pool,address witness,bool acceptUnwitnessed,bool acceptUnverified,"
    "bytes32 sealedKeyHash,uint8 maxRecipients,uint64 expiry,uint256 nonce)"
)
ASSIGNMENT = (
    "Assignment(bytes32 assignmentId,address coordinator,address provider,bytes32 specHash,"
    "bytes32 pool,uint8 priceTier,uint128 pricePerHour,uint64 maxDuration,uint64 acceptBy)"
)
COMMIT = (
    "Commit(bytes32 assignmentHash,bytes32 classId,bytes32 commitment,bytes32 encryptedOutput,"
    "uint64 usageMs,uint64 beaconRound)"
)
TERMS = "uint256 nonce,uint64 deadline,uint128 maxFee"
REQUESTS = {
    "lock_for": f"LockRequest(address account,address payee,uint128 amount,{TERMS})",
    "close_for": f"CloseTabRequest(address account,address payee,{TERMS})",
    "withdraw_for": f"WithdrawRequest(address account,uint128 amount,{TERMS})",
}
Sig = tuple[int, int, int]
Who = str | Address


@lru_cache(maxsize=4096)
def secret(label: str) -> coincurve.PrivateKey:
    """The key that belongs to a label, always the same one."""
    return coincurve.PrivateKey(keccak256(label.encode()))


@lru_cache(maxsize=4096)
def account(who: Who) -> Address:
    """The address of a label; an address is its own."""
    if not isinstance(who, str):
        return who
    public = secret(who).public_key.format(compressed=False)
    made = Address(keccak256(public[1:])[12:])
    SECRETS[made] = secret(who).secret
    return made


def sign(label: str, digest: Hash32) -> Sig:
    """A label's signature as the contracts take it: r, s, v."""
    raw = secret(label).sign_recoverable(digest, hasher=None)
    return int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:64], "big"), 27 + raw[64]


def typed_hash(domain: Domain, kind: str, values: tuple[Any, ...]) -> Hash32:
    """The EIP-712 digest of values under a type string whose members are static."""
    kinds = [each.split()[0] for each in re.findall(r"\((.*)\)", kind)[0].split(",")]
    struct = keccak256(encode(["bytes32", *kinds], [keccak256(kind.encode()), *values]))
    return keccak256(b"\x19\x01" + domain.separator() + struct)


def pair(who: Who, amount: int) -> int:
    """An account and an amount in one word."""
    return int.from_bytes(account(who), "big") << 96 | amount


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that succeeded."""

    gas: int
    data: bytes
    events: tuple[Happened, ...]

    def all(self, name: str) -> list[Happened]:
        """Its events of one kind."""
        return [event for event in self.events if event.name == name]

    def one(self, name: str) -> Happened:
        """Its only event of one kind."""
        (found,) = self.all(name)
        return found


@dataclass
class World:
    """One state of the chain, and the contracts on it by name."""

    evm: PyEvm
    contracts: dict[str, Contract] = field(default_factory=dict)
    nonce: int = 0  # of the deployer

    def fork(self) -> "World":
        """Returns an independent copy from here on."""
        return dataclasses.replace(self, evm=self.evm.fork(), contracts=dict(self.contracts))

    def __getattr__(self, name: str) -> Contract:
        """`world.escrow` is the contract Escrow, `world.token` the TestToken."""
        for each, found in self.__dict__["contracts"].items():
            if each.lower().removeprefix("test") == name:
                return found  # type: ignore[no-any-return]
        raise AttributeError(name)

    @property
    def now(self) -> int:
        return self.evm.now

    @property
    def domain(self) -> Domain:
        return Domain(CHAIN_ID, self.stakes.address)

    def deploy(self, name: str, *arguments: Any, made: dict[str, Any] | None = None) -> Contract:
        """Deploys a contract from its source, or from a compilation of another source."""
        made = made or calls.compilation(name)
        place = created_address(account("boss"), self.nonce)
        self.nonce += 1
        self.evm._transact(account("boss"), None, creation(made, arguments), GAS)
        assert len(self.evm.code(place)) > 0
        found = Contract(name, place, tuple(made["abi"]))
        self.contracts[found.name] = found
        return found

    def next_address(self, ahead: int) -> Address:
        """Where the deployer's contract after `ahead` others will be."""
        return created_address(account("boss"), self.nonce + ahead)

    def send(self, who: Who, contract: Contract, function: str, *arguments: Any) -> Sent:
        """Sends a transaction with the gas that its typed call has. Raises Reverted with the
        contract's reason.
        """
        data = contract.data(function, *arguments)
        is_bound = f"{contract.name}.{function}" in BOUNDS
        limit = gas_of(contract.name, function, arguments) if is_bound else GAS
        gas, logs = self.evm._transact(account(who), contract.address, data, limit)
        return Sent(gas, data, tuple(filter(None, map(self._event, logs))))

    def _event(self, log: Log) -> Happened | None:
        found = (contract.event(log) for contract in self.contracts.values())
        return next((event for event in found if event is not None), None)

    def ask(self, contract: Contract, function: str, *arguments: Any) -> Any:
        """What a view returns now."""
        data = contract.data(function, *arguments)
        return contract.result(function, self.evm._call(NOBODY, contract.address, data))

    def refused(
        self, reason: str, who: Who, contract: Contract, function: str, *arguments: Any
    ) -> None:
        """Asserts that a call is refused for exactly this reason, and changes nothing."""
        before = self.evm.state_root
        with pytest.raises(Reverted) as caught:
            self.send(who, contract, function, *arguments)
        assert str(caught.value) == reason, f"refused for {caught.value!s}, not for {reason}"
        assert self.evm.state_root == before

    def expect(
        self, reason: str, who: Who, contract: Contract, function: str, *arguments: Any
    ) -> None:
        """Asserts that a call is refused for this reason, or taken if there is none."""
        if reason:
            self.refused(reason, who, contract, function, *arguments)
        else:
            self.send(who, contract, function, *arguments)

    def fund(self, who: Who, amount: int) -> None:
        """Gives an account tokens, and lets Escrow and Stakes pull them."""
        self.send(who, self.token, "mint", account(who), amount)
        for spender in (self.escrow, self.stakes):
            self.send(who, self.token, "approve", spender.address, 2**256 - 1)

    def coordinator(self, label: str = "coordinator", limit: int = 10_000 * USD) -> None:
        """Registers a coordinator with its two keys and its limits."""
        self.fund(label, BOND)
        keys = account(f"{label} statement"), account(f"{label} posting")
        self.send(label, self.stakes, "register_coordinator", *keys)
        self.send(label, self.escrow, "set_limits", limit, limit)

    def provider(self, label: str, slots: int = 1) -> None:
        """Registers an owner with its operator key, its payout address, and slots."""
        self.fund(label, SLOT_STAKE * slots)
        keys = account(f"{label} operator"), account(f"{label} payout")
        network = keccak256(label.encode())[:7].ljust(32, b"\0")
        self.send(label, self.stakes, "register", *keys, ZERO_HASH, ZERO_HASH, network)
        if slots:
            self.send(label, self.stakes, "open_slots", CLASS, slots)

    def session(
        self,
        payer: str,
        payee: Who = "coordinator",
        up_to: int = 10**12,
        expires: int | None = None,
        key: str = "",
        signer: str = "",
    ) -> tuple[Any, ...]:
        """A signed session of a payer as `redeem` takes it."""
        key = key or f"{payer} session"
        until = self.now + 30 * DAY if expires is None else expires
        values = (account(payer), account(key), account(payee), up_to, until)
        signature = sign(signer or payer, typed_hash(self.domain, SESSION, values))
        return account(payer), account(key), up_to, until, signature

    def voucher(
        self, payer: str, payee: Who, cumulative: int, key: str = "", domain: Domain | None = None
    ) -> tuple[int, Sig]:
        """A signed voucher as `redeem` takes it, by the payer's session key unless one is named."""
        values = (account(payer), account(payee), cumulative)
        digest = typed_hash(domain or self.domain, VOUCHER, values)
        return pair(payer, cumulative), sign(key or f"{payer} session", digest)

    def relayed(
        self, function: str, who: str, *arguments: Any, fee: int = 0, signer: str = "", **terms: int
    ) -> tuple[Any, ...]:
        """The arguments of a relayed request. `terms`: nonce, deadline, maxFee if not the usual."""
        nonce = self.ask(self.escrow, "request_nonce", account(who))
        usual = {"nonce": nonce, "deadline": self.now + 60, "maxFee": USD}
        stated = tuple((usual | terms).values())
        kind, plain = REQUESTS[function], tuple(_plain(each) for each in arguments)
        digest = typed_hash(self.domain, kind, (account(who), *plain, *stated))
        return account(who), *plain, stated, fee, sign(signer or who, digest)

    def signed(self, kind: str, message: dict[str, Any], label: str) -> Sig:
        """A label's signature over a message whose fields are in their order."""
        return sign(label, typed_hash(self.domain, kind, tuple(message.values())))

    def balance(self, who: Who) -> int:
        """What an account has in Escrow."""
        return int(self.ask(self.escrow, "balance_of", account(who)))

    def tokens(self, who: Who) -> int:
        """What an account has in the token."""
        return int(self.ask(self.token, "balanceOf", account(who)))

    def tab(self, payer: Who, payee: Who) -> tuple[int, int, int, int]:
        """A tab: locked, paid, drawn, closesAt."""
        return tuple(self.ask(self.escrow, "tab", account(payer), account(payee)))  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    return account(value) if isinstance(value, str) else value


def deployed(**made: dict[str, Any]) -> World:
    """A new market; `made`: compilations that replace those of the sources, by contract."""
    world = World(PyEvm.made())
    token = world.deploy("TestToken", True, 0, made=made.get("TestToken"))
    stakes, escrow, jobs = (world.next_address(ahead) for ahead in range(3))
    court = account("court")
    places = {"token": token.address, "court": court, "faults": court, "escrow": escrow}
    limits = dict(zip(STAKES_LIMITS, (SLOT_STAKE, BOND, 21 * DAY, 10 * DAY), strict=True))
    world.deploy("Stakes", *calls.arguments("Stakes", places | limits))
    closes = (CLIENT_CLOSE, COORDINATOR_CLOSE)
    modules = (token.address, stakes, court, jobs)
    world.deploy("Escrow", *modules, *closes, made=made.get("Escrow"))
    windows = (EVIDENCE_WINDOW, EVIDENCE_AGE)
    world.deploy("Jobs", escrow, stakes, *windows, made=made.get("Jobs"))
    return world


def market() -> World:
    """A market with its coordinator. Each process deploys once and forks the result."""
    return _market().fork()


@lru_cache(maxsize=1)
def _market() -> World:
    world = deployed()
    world.coordinator()
    world.evm.travel(1000)
    return world
