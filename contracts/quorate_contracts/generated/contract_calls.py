"""What the generated modules return: calls to send and queries to ask, and how both are encoded.
Pure: nothing here contacts a chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import astuple

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS, Function, artifact
from quorate_contracts.generated.gas_bounds import gas_of
from quorate_protocol.codec.canonical import Json
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address

T = TypeVar("T", covariant=True)
R = TypeVar("R")
SIGNATURE_BYTES = 65


@dataclass(frozen=True, slots=True)
class Call:
    """A transaction to send. `gas` is a measured upper bound. It is never estimated, because an
    estimate runs a pairing many times, which takes seconds. `function` and `arguments` say what
    `data` encodes.
    """

    to: Address
    data: bytes
    gas: int
    function: str = field(default="", compare=False)
    arguments: tuple[object, ...] = field(default=(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """Names function and arguments for a person; no arguments if one of them is a struct."""
        texts = [_text(each) for each in self.arguments]
        return self.function + ("" if None in texts else f"({', '.join(map(str, texts))})")

    @property
    def text(self) -> str:
        return f"{self.name} of 0x{self.to.hex()}"


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
    """One deployed contract. Subclasses name the artifact and have a method for each function."""

    address: Address
    NAME: ClassVar[str] = ""

    def _call(self, function: str, *arguments: object) -> Call:
        kind = artifact(self.NAME).functions[function]
        values = _arguments(kind, arguments)
        data = kind.call_data(values)
        return Call(self.address, data, gas_of(self.NAME, function, values), function, arguments)

    def _query(
        self, function: str, read: Callable[[Sequence[Json]], R], *arguments: object
    ) -> Query[R]:
        kind = artifact(self.NAME).functions[function]

        def decode(data: bytes) -> R:
            try:
                return read(kind.results(data))
            except (TypeError, ValueError, OverflowError) as error:
                raise Unavailable(
                    f"the chain node's answer is no {function}: {str(error)[:200]}",
                    CHAIN_RETRY_SECONDS,
                ) from error

        return Query(self.address, kind.call_data(_arguments(kind, arguments)), decode)


def _text(argument: object) -> str | None:
    """Returns an argument as people write it; None for a struct."""
    if isinstance(argument, bytes):
        return f"0x{argument.hex()}"
    if isinstance(argument, list | tuple):
        texts = [_text(each) for each in argument]
        return None if None in texts else f"[{', '.join(map(str, texts))}]"
    return str(argument) if isinstance(argument, int) else None


def _arguments(kind: Function, values: Sequence[object]) -> list[object]:
    pairs = zip(kind.inputs, values, strict=True)
    return [value if each == "bytes" else plain(value) for each, value in pairs]


def plain(value: object) -> object:
    """Returns a value as eth-abi takes it. A signature of 65 bytes becomes the words r, s, v."""
    if isinstance(value, bytes) and len(value) == SIGNATURE_BYTES:
        r, s = int.from_bytes(value[:32], "big"), int.from_bytes(value[32:64], "big")
        return (r, s, value[64])
    if isinstance(value, Struct):
        return tuple(plain(item) for item in astuple(value))
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, item.name)) for item in fields(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def one(results: Sequence[Json]) -> Json:
    return results[0]


def values(results: Sequence[Json]) -> tuple[Json, ...]:
    return tuple(_list(results[0])) if len(results) == 1 else tuple(results)


def struct_of(kind: type[R]) -> Callable[[Sequence[Json]], R]:
    return lambda results: made(kind, _list(results[0]))


def structs_of(kind: type[R]) -> Callable[[Sequence[Json]], tuple[R, ...]]:
    return lambda results: tuple(made(kind, _list(item)) for item in _list(results[0]))


def made(kind: type[R], members: Sequence[Json]) -> R:
    hints = list(_hints(kind).values())  # type: ignore[arg-type]
    if len(hints) != len(members):
        raise ValueError(f"{kind.__name__} has {len(hints)} members, not {len(members)}")
    return kind(*(_read(hint, value) for hint, value in zip(hints, members, strict=True)))


def _read(hint: object, value: Json) -> object:
    if get_origin(hint) is tuple:
        return tuple(_read(get_args(hint)[0], item) for item in _list(value))
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Struct)):
        return made(hint, _list(value))
    return value


@cache
def _hints(kind: type) -> dict[str, object]:
    found = get_type_hints(kind)
    return {name: hint for name, hint in found.items() if get_origin(hint) is not ClassVar}


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{str(value)[:40]} is no list")
    return value
