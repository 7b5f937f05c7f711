"""Deploys the contracts: `plan` lists the transactions that create them, and `Deployment` holds
what all programs must know about the result.

The contracts name each other before they exist, because the deployer and its nonces determine
their addresses. So there is no owner, no call that connects them later, and no moment in which a
half-connected deployment could be misused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import Struct

from quorate_contracts.artifact import CONTRACTS, artifact
from quorate_contracts.constructors import constructor_arguments
from quorate_contracts.events import Event, decode_log
from quorate_contracts.generated.beacon import Beacon
from quorate_contracts.generated.court import Court
from quorate_contracts.generated.escrow import Escrow
from quorate_contracts.generated.faults import Faults
from quorate_contracts.generated.jobs import Jobs
from quorate_contracts.generated.stakes import Stakes
from quorate_contracts.generated.token import Token
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import BY_NAME, Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber, Hash32, Seconds
from quorate_protocol.values import replace

if TYPE_CHECKING:
    from web3 import AsyncWeb3
    from web3.contract import AsyncContract

    from quorate_runtime.chain.client import ChainClient

GAS = {  # of each creation, with room for a chain that counts a little more
    "TestToken": 600_000,
    "Stakes": 5_200_000,
    "Escrow": 4_000_000,
    "Jobs": 3_100_000,
    "Beacon": 1_250_000,
    "Court": 4_700_000,
    "Faults": 1_300_000,
}
WAVE_GAS_MAX = 20_000_000  # two thirds of the smallest block that is common


class Trusted(TypedDict):
    """The arguments of a `Sender` that no node may decide."""

    chain_id: int
    deployment: bytes


def trusted(domain: Domain, beacon: BeaconInfo) -> Trusted:
    """Returns what names a deployment in the records of sent transactions.

    The contracts hold the beacon for ever. A fresh devnet has a beacon of its own, so it does not
    meet the nonces of an older one at the same addresses.
    """
    begin = beacon.genesis_time.to_bytes(8, "big")
    key = sha256(domain.separator() + beacon.public_key + begin)
    return {"chain_id": domain.chain_id, "deployment": key}


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
    jobs: Address
    beacon: Address
    court: Address
    faults: Address
    beacon_key: bytes  # 96-byte compressed G2 point
    beacon_period: Seconds
    beacon_genesis: int
    genesis: Hash32 = ZERO_HASH  # hash of the chain's first block; zero if the deployer kept none

    def domain(self) -> Domain:
        return Domain(self.chain_id, self.stakes)

    def constants(self) -> Limits:
        return BY_NAME[self.limits]

    def beacon_info(self) -> BeaconInfo:
        return BeaconInfo(self.beacon_key, self.beacon_period, self.beacon_genesis)

    def trusted(self) -> "Trusted":
        return trusted(self.domain(), self.beacon_info())

    def places(self) -> dict[str, Address]:
        addresses = (
            self.token,
            self.stakes,
            self.escrow,
            self.jobs,
            self.beacon,
            self.court,
            self.faults,
        )
        return dict(zip(CONTRACTS, addresses, strict=True))

    def names(self) -> dict[Address, str]:
        return {address: name for name, address in self.places().items()}

    def contract(self, w3: "AsyncWeb3[Any]", name: str) -> "type[AsyncContract] | AsyncContract":
        """Returns a contract of `CONTRACTS` as a web3 contract object, for any web3 program."""
        from eth_utils.address import to_checksum_address

        address = to_checksum_address(self.places()[name])
        return w3.eth.contract(address=address, abi=artifact(name).abi)


@dataclass(frozen=True, slots=True)
class Contracts:
    """The typed calls and queries of one deployment's contracts."""

    deployment: Deployment
    token: Token
    stakes: Stakes
    escrow: Escrow
    jobs: Jobs
    beacon: Beacon
    court: Court
    faults: Faults

    @classmethod
    def of(cls, deployment: Deployment) -> "Contracts":
        d = deployment
        made = (
            Token(d.token),
            Stakes(d.stakes),
            Escrow(d.escrow),
            Jobs(d.jobs),
            Beacon(d.beacon),
            Court(d.court),
            Faults(d.faults),
        )
        return cls(d, *made)

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


def waves(creations: Sequence[Creation]) -> Iterator[tuple[Creation, ...]]:
    """Returns the creations in groups that fit into one block each.

    Some nodes leave out a transaction that a block has no room for, and then forget the later ones
    of its sender. So the next group is sent once the one before is in blocks.
    """
    group: list[Creation] = []
    for creation in creations:
        if sum(item.gas for item in [*group, creation]) > WAVE_GAS_MAX:
            yield tuple(group)
            group = []
        group.append(creation)
    yield tuple(group)


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
    made = CONTRACTS if token is None else CONTRACTS[1:]
    places = {name: created_address(deployer, nonce + i) for i, name in enumerate(made)}
    places |= {} if token is None else {"TestToken": token}
    arguments = constructor_arguments(places, limits, beacon, faucet)
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
        jobs=places["Jobs"],
        beacon=places["Beacon"],
        court=places["Court"],
        faults=places["Faults"],
        beacon_key=beacon.public_key,
        beacon_period=beacon.period,
        beacon_genesis=beacon.genesis_time,
    )
    return Plan(creations, deployment)


def created_address(deployer: Address, nonce: int) -> Address:
    """Returns the address of a contract that `deployer` creates with this nonce (Yellow Paper,
    equation 87).
    """
    from eth_typing import HexAddress, HexStr
    from web3.types import Nonce
    from web3.utils.address import get_create_address

    sender = HexAddress(HexStr("0x" + deployer.hex()))
    return Address(bytes.fromhex(get_create_address(sender, Nonce(nonce))[2:]))


async def with_genesis(deployment: Deployment, client: "ChainClient") -> Deployment:
    first = await client.block(BlockNumber(0))
    return deployment if first is None else replace(deployment, genesis=first.hash)


def encode(deployment: Deployment) -> bytes:
    return canonical.encode(deployment)


def digest(deployment: Deployment) -> str:
    """Returns the SHA-256 of the canonical JSON in hex, by which people compare deployments."""
    return sha256(encode(deployment)).hex()


def decode(data: bytes) -> Deployment:
    return canonical.decode(Deployment, data)
