"""Compares the code of every contract on a chain with the code that this version deploys.

A contract on chain is its runtime code, and after it its immutables. The runtime code must have the
committed hash. An immutable that names a contract must name the checked one; all others must have
the value that the limits give. So a deployment with one changed rule, constant or address is found
before anything is signed for it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from quorate_contracts.artifact import CONTRACTS, Artifact, artifact
from quorate_contracts.constructors import constructor_arguments
from quorate_contracts.deploy import Deployment
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address
from quorate_runtime.chain.client import ChainClient

TOKEN = "TestToken"  # the artifact's name; the token of a deployment may be any other
_WORD = 32
_NAMED: Mapping[str, str] = {"TOKEN": TOKEN} | {
    name.upper(): name for name in CONTRACTS if name != TOKEN
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a reader knows of a deployment: addresses of some contracts, and its constants. The
    immutables of the known contracts name the other ones.
    """

    places: Mapping[str, Address]
    limits: Limits
    beacon: BeaconInfo

    @classmethod
    def of(cls, deployment: Deployment) -> "Expected":
        return cls(deployment.places(), deployment.constants(), deployment.beacon_info())


async def check_codes(client: ChainClient, expected: Expected) -> dict[str, Address]:
    """Returns the address of every contract that the known ones name, themselves included.

    Raises Refused(CHAIN), which names the contract, what differs and the remedy. The token is not
    compared: it may be any stablecoin.
    """
    found = dict(expected.places)
    constants = _constants(expected)
    checked: set[str] = set()
    while waiting := sorted(found.keys() - checked):
        codes = await asyncio.gather(*(client.code(found[name]) for name in waiting))
        for name, code in zip(waiting, codes, strict=True):
            _must_be_there(name, found[name], code)
        for name, code in zip(waiting, codes, strict=True):
            _check(name, found, code, constants[name])
        checked |= set(waiting)
    return found


def _must_be_there(name: str, address: Address, code: bytes) -> None:
    if not code:
        raise Refused(
            Code.CHAIN,
            f"no {name} contract at 0x{address.hex()}: this is another chain, or the devnet was "
            f"started again; init with its deployment in a new folder",
        )


def _check(name: str, found: dict[str, Address], code: bytes, constants: Mapping[str, str]) -> None:
    """Checks one contract's code, and adds the contracts that it names to `found`."""
    what = f"the {name} contract at 0x{found[name].hex()}"
    if name == TOKEN:
        return
    made = artifact(name)
    runtime, words = code[: made.runtime_bytes], code[made.runtime_bytes :]
    if keccak256(runtime) != made.runtime_hash:
        raise Refused(
            Code.CHAIN,
            f"{what} has other code (hash 0x{keccak256(runtime).hex()}) than this version deploys: "
            f"use the version that its market names, or another market",
        )
    for key, value in _values(made, words).items():
        if (other := _NAMED.get(key)) is not None:
            address = Address(value[-20:])
            if found.setdefault(other, address) != address:
                raise Refused(
                    Code.CHAIN,
                    f"{what} works with another {other} (0x{address.hex()}) than the deployment "
                    f"names: get deployment.json from the market again",
                )
        elif value.hex() != constants[key]:
            raise Refused(
                Code.CHAIN,
                f"{what} was built with another {key} than the limits or the beacon say: use the "
                f"version that its market names, or another market",
            )


def _values(made: Artifact, words: bytes) -> dict[str, bytes]:
    """Returns the immutables by name. Cut-off ones give wrong values, which are refused."""
    found, at = {}, 0
    for name, length in made.immutables:
        found[name] = words[at : at + length]
        at += length
    if at != len(words):
        return dict.fromkeys(found, b"")
    return found


def _constants(expected: Expected) -> dict[str, dict[str, str]]:
    """Returns the immutables that every contract must have, as hex, by contract and name."""
    places = defaultdict(lambda: ZERO_ADDRESS, expected.places)
    arguments = constructor_arguments(places, expected.limits, expected.beacon, faucet=False)
    return {
        name: {
            _immutable_name(parameter): _stored(value)
            for parameter, value in zip(artifact(name).parameters, arguments[name], strict=True)
        }
        for name in CONTRACTS
    }


def _immutable_name(parameter: str) -> str:
    return "".join(f"_{it}" if it.isupper() else it.upper() for it in parameter)


def _stored(value: object) -> str:
    """Returns a value as the contract's code holds it: bytes have their length before them."""
    if isinstance(value, bytes):
        is_address = len(value) == len(ZERO_ADDRESS)
        return (b"" if is_address else len(value).to_bytes(_WORD, "big")).hex() + (
            value.rjust(_WORD, b"\0").hex()
        )
    assert isinstance(value, int), f"no immutable has such a value: {value!r}"
    return int(value).to_bytes(_WORD, "big").hex()
