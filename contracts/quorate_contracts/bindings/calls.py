"""The values that the bindings return (calls to send, queries to ask), and how both are encoded.
Pure: nothing here contacts a chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS, artifact
from quorate_protocol.codec.canonical import Json
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Signature

T = TypeVar("T", covariant=True)
R = TypeVar("R")
Words = tuple[int, int, int]  # a signature as the contracts take it: r, s, v


@dataclass(frozen=True, slots=True)
class Call:
    """A transaction to send. `gas` is a measured upper bound. It is never estimated, because an
    estimate runs a pairing many times, which takes seconds.
    """

    to: Address
    data: bytes
    gas: int


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """An eth_call to ask. `decode` turns the returned bytes into the answer. It raises Unavailable
    for other bytes, because then the chain node is faulty.
    """

    to: Address
    data: bytes
    decode: Callable[[bytes], T]


@dataclass(frozen=True, slots=True)
class Contract:
    """One deployed contract. Subclasses name the artifact, and have one typed method for each
    function.
    """

    address: Address
    NAME: ClassVar[str] = ""

    def _call(self, function: str, gas: int, *arguments: object) -> Call:
        return Call(self.address, artifact(self.NAME).functions[function].call_data(arguments), gas)

    def _query(self, function: str, read: Callable[..., R], *arguments: object) -> Query[R]:
        """Returns a query whose answer is `read(*results)`. If the only result is a struct, `read`
        gets its members.
        """
        kind = artifact(self.NAME).functions[function]

        def decode(data: bytes) -> R:
            try:
                values: tuple[Json, ...] = kind.results(data)
                if (
                    len(kind.outputs) == 1
                    and kind.outputs[0].startswith("(")
                    and not kind.outputs[0].endswith("]")
                ):
                    values = values[0]
                return read(*values)
            except (ValueError, OverflowError) as error:
                raise Unavailable(
                    f"the chain node's answer is no {function}: {str(error)[:200]}",
                    CHAIN_RETRY_SECONDS,
                ) from error

        return Query(self.address, kind.call_data(arguments), decode)


def words(signature: Signature) -> Words:
    """Returns a signature of 65 bytes, r | s | v, as the three words that the contracts take."""
    assert len(signature) == 65, "a signature has 65 bytes"
    return (
        int.from_bytes(signature[:32], "big"),
        int.from_bytes(signature[32:64], "big"),
        signature[64],
    )


def as_is(value: R) -> R:
    """Returns a single result unchanged."""
    return value
