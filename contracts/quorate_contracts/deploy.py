"""Deploys the contracts: `plan` lists the transactions that create them, and `Deployment` holds
what all programs must know about the result.

The contracts name each other before they exist, because the deployer and its nonces determine
their addresses. So there is no owner, no call that connects them later, and no moment in which a
half-connected deployment could be misused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from quorate_contracts.artifact import artifact
from quorate_contracts.bindings.beacon import BeaconContract
from quorate_contracts.bindings.court import Court
from quorate_contracts.bindings.epochs import Epochs
from quorate_contracts.bindings.escrow import Escrow
from quorate_contracts.bindings.events import Event, decode_log
from quorate_contracts.bindings.stakes import Stakes
from quorate_contracts.bindings.token import Token
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import BY_NAME, Limits
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import Address, BlockNumber, Hash32, Seconds
from quorate_runtime.beacon.bls import public_key_words, words_bytes

if TYPE_CHECKING:
    from web3 import AsyncWeb3
    from web3.contract import AsyncContract

ORDER = ("TestToken", "Stakes", "Escrow", "Epochs", "Beacon", "Court")
GAS = {
    "TestToken": 700_000,
    "Stakes": 3_200_000,
    "Escrow": 1_700_000,
    "Epochs": 2_600_000,
    "Beacon": 1_300_000,
    "Court": 5_200_000,
}


class Deployment(Struct, frozen=True):
    """The addresses and constants of one deployment. `limits` names the constants that its
    contracts were built with.
    """

    chain_id: int
    start_block: BlockNumber  # the contracts have no event in an older block
    limits: str
    token: Address
    stakes: Address
    escrow: Address
    epochs: Address
    beacon: Address
    court: Address
    beacon_key: bytes  # 96-byte compressed G2 point
    beacon_period: Seconds
    beacon_genesis: int

    def domain(self) -> Domain:
        """Returns the EIP-712 domain of every message."""
        return Domain(self.chain_id, self.stakes)

    def constants(self) -> Limits:
        """Returns the limits that the contracts were built with."""
        return BY_NAME[self.limits]

    def beacon_info(self) -> BeaconInfo:
        """Returns the beacon's key, period and start."""
        return BeaconInfo(self.beacon_key, self.beacon_period, self.beacon_genesis)

    def names(self) -> dict[Address, str]:
        """Returns the artifact name of each contract by its address."""
        addresses = (self.token, self.stakes, self.escrow, self.epochs, self.beacon, self.court)
        return dict(zip(addresses, ORDER, strict=True))

    def contract(self, w3: "AsyncWeb3[Any]", name: str) -> "type[AsyncContract] | AsyncContract":
        """Returns a contract of `ORDER` as a web3 contract object, for any web3 program."""
        from eth_utils.address import to_checksum_address

        addresses = {name: address for address, name in self.names().items()}
        address = to_checksum_address(addresses[name])
        return w3.eth.contract(address=address, abi=artifact(name).abi)


@dataclass(frozen=True, slots=True)
class Contracts:
    """The typed bindings of one deployment's contracts."""

    deployment: Deployment
    token: Token
    stakes: Stakes
    escrow: Escrow
    epochs: Epochs
    beacon: BeaconContract
    court: Court

    @classmethod
    def of(cls, deployment: Deployment) -> "Contracts":
        """Returns the bindings at a deployment's addresses."""
        d = deployment
        bindings = (
            Token(d.token),
            Stakes(d.stakes),
            Escrow(d.escrow),
            Epochs(d.epochs),
            BeaconContract(d.beacon),
            Court(d.court),
        )
        return cls(d, *bindings)

    def event(self, address: Address, topics: tuple[Hash32, ...], data: bytes) -> Event | None:
        """Returns the event in a log; None for logs of other contracts and for token transfers."""
        return decode_log(self.deployment.names(), address, topics, data)


@dataclass(frozen=True, slots=True)
class Creation:
    """A transaction that creates a contract. Its nonce must be this one: another nonce would give
    the contract another address than the one that the other contracts name.
    """

    name: str
    address: Address
    nonce: int
    arguments: tuple[object, ...]  # of the constructor
    data: bytes
    gas: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The transactions to send, in order, and the deployment that they make."""

    creations: tuple[Creation, ...]
    deployment: Deployment


def plan(
    deployer: Address,
    nonce: int,
    chain_id: int,
    start_block: BlockNumber,
    limits: Limits,
    beacon: BeaconInfo,
    faucet: bool,
    token: Address | None = None,
) -> Plan:
    """Returns the transactions of a whole deployment from `deployer`, whose next nonce is given.

    With `token`, the deployment uses this token of the chain and makes none. Otherwise it makes a
    test token. With `faucet` any account can mint that one, which is for test chains only.
    """
    assert beacon.period == limits.beacon_period, (
        "the beacon's period is a constant of the deployment"
    )
    made = ORDER if token is None else ORDER[1:]
    places = {name: created_address(deployer, nonce + i) for i, name in enumerate(made)}
    places |= {} if token is None else {"TestToken": token}
    arguments = _arguments(places, limits, beacon, faucet)
    creations = tuple(
        Creation(
            name=name,
            address=places[name],
            nonce=nonce + i,
            arguments=arguments[name],
            data=artifact(name).creation(arguments[name]),
            gas=GAS[name],
        )
        for i, name in enumerate(made)
    )
    deployment = Deployment(
        chain_id=chain_id,
        start_block=start_block,
        limits=limits.name,
        token=places["TestToken"],
        stakes=places["Stakes"],
        escrow=places["Escrow"],
        epochs=places["Epochs"],
        beacon=places["Beacon"],
        court=places["Court"],
        beacon_key=beacon.public_key,
        beacon_period=beacon.period,
        beacon_genesis=beacon.genesis_time,
    )
    return Plan(creations, deployment)


def _arguments(
    places: dict[str, Address], limits: Limits, beacon: BeaconInfo, faucet: bool
) -> dict[str, tuple[object, ...]]:
    """Returns the constructor arguments of each contract. Every constant comes from `limits`."""
    token, stakes, escrow, epochs, beacon_place, court = (places[name] for name in ORDER)
    jury = (
        limits.jury_owners_min,
        limits.jury_slot_age,
        limits.jury_rounds_ahead,
        limits.jury_beacon_missing,
        limits.jury_window,
    )
    return {
        "TestToken": (faucet, 0),
        "Stakes": (
            token,
            court,
            escrow,
            limits.slot_stake,
            limits.coordinator_bond,
            limits.unbond_after,
        ),
        "Escrow": (token, stakes, epochs, limits.allocation_release, limits.withdrawal_delay),
        "Epochs": (stakes, escrow, limits.challenge_window),
        "Beacon": (
            words_bytes(public_key_words(beacon.public_key)),
            beacon.genesis_time,
            beacon.period,
        ),
        "Court": (
            token,
            stakes,
            escrow,
            beacon_place,
            *jury,
            limits.jury_gas_fee,
            limits.case_evidence_age,
            limits.case_allocation_age,
        ),
    }


def created_address(deployer: Address, nonce: int) -> Address:
    """Returns the address of a contract that `deployer` creates with this nonce (Yellow Paper,
    equation 87).
    """
    from eth_typing import HexAddress, HexStr
    from web3.types import Nonce
    from web3.utils.address import get_create_address

    sender = HexAddress(HexStr("0x" + deployer.hex()))
    return Address(bytes.fromhex(get_create_address(sender, Nonce(nonce))[2:]))


def encode(deployment: Deployment) -> bytes:
    """Returns the canonical JSON of a deployment."""
    return canonical.encode(deployment)


def decode(data: bytes) -> Deployment:
    """Returns the deployment of its canonical JSON."""
    return canonical.decode(Deployment, data)
