"""What the bindings hand out: calls to send, queries to ask, and how both are encoded. Pure:
nothing here talks to a chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from eth_abi.exceptions import DecodingError

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS, artifact
from quorate_protocol.codec.canonical import Json
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Signature

T = TypeVar("T", covariant=True)
R = TypeVar("R")
Words = tuple[int, int, int]  # a signature as the contracts take it: r, s, v


@dataclass(frozen=True, slots=True)
class Call:
    """A transaction to send. `gas` is an upper bound by measurement: never estimated, because
    bisecting a pairing takes seconds.
    """

    to: Address
    data: bytes
    gas: int


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """An eth_call; `decode` turns the bytes it returns into the answer. Unavailable for bytes
    that are none: the node is out of order.
    """

    to: Address
    data: bytes
    decode: Callable[[bytes], T]


@dataclass(frozen=True, slots=True)
class Contract:
    """One deployed contract. Subclasses name the artifact and give its functions typed faces."""

    address: Address
    NAME: ClassVar[str] = ""

    def _call(self, function: str, gas: int, *arguments: object) -> Call:
        return Call(self.address, artifact(self.NAME).functions[function].encode(arguments), gas)

    def _query(self, function: str, read: Callable[..., R], *arguments: object) -> Query[R]:
        """`read` gets the function's results as arguments; a single struct is spread into its
        members.
        """
        kind = artifact(self.NAME).functions[function]

        def decode(data: bytes) -> R:
            try:
                values: tuple[Json, ...] = kind.decode(data)
                if (
                    len(kind.outputs) == 1
                    and kind.outputs[0].startswith("(")
                    and not kind.outputs[0].endswith("]")
                ):
                    values = values[0]
                return read(*values)
            except (DecodingError, ValueError, OverflowError) as error:
                raise Unavailable(
                    f"the chain node's answer is no {function}: {str(error)[:200]}",
                    CHAIN_RETRY_SECONDS,
                ) from error

        return Query(self.address, kind.encode(arguments), decode)


def words(signature: Signature) -> Words:
    """65 bytes r | s | v as the contracts' three words."""
    assert len(signature) == 65, "a signature has 65 bytes"
    return (
        int.from_bytes(signature[:32], "big"),
        int.from_bytes(signature[32:64], "big"),
        signature[64],
    )


def as_is(value: R) -> R:
    """Reads a single result that needs no dataclass."""
    return value
