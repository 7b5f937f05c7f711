"""Writes this folder's modules: each contract's calls, queries and events as typed Python.

They follow from its ABI and NatSpec. For development only; nobody edits the output.

A parameter's name gives its unit (`UNITS`). A struct whose fields are those of a signed message is
that message; others get a dataclass, named in `STRUCTS` or after the parameter or function that
has it. A struct of r, s and v is a `Signature`.
"""

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from re import fullmatch, sub

from msgspec.structs import fields

from quorate_contracts.artifact import CONTRACTS
from quorate_protocol.codec.canonical import Json
from quorate_protocol.codec.declared_types import camel
from quorate_protocol.messages.signed import MESSAGE_TYPES

FOLDER = Path(__file__).parent
CLASSES = {"TestToken": "Token"}
UNITS: dict[str, tuple[str, ...]] = {
    "Amount": (
        "added allowance amount amount_max back balance balance_of bond bond_of budget burned",
        "coordinator_bond cost credit credit_of cumulative drawn fee free gas_fee limit lock_limit",
        "locked paid pay pay_limit pays reward seat_pay slashed slot_stake spent stake stake_of",
        "taken up_to value",
    ),
    "UnixSeconds": (
        "accept_by at closes_at deadline ends_at evidence_until expires first_shown_at opened_at",
        "pay_from profiles_at reveal_by second_shown_at since timestamp until vote_by",
    ),
    "Seconds": ("client_close coordinator_close period unbond_after window",),
    "Round": ("round",),
    "BlockNumber": ("at_block from_block out_block until_block",),
    "Nonce": ("case_id nonce request_nonce",),
    "Price": ("price_per_hour",),
}
UNIT_OF = {name: unit for unit, rows in UNITS.items() for row in rows for name in row.split()}
STRUCTS = {"wanted": "Registration", "terms": "RequestTerms"}
SIGNATURE = ("r", "s", "v")
PLAIN = frozenset({"Address", "Hash32", "Signature", "bool", "bytes", "int", "str"})
WIDTH = 100
IMPORTED = ("Call", "Contract", "Query", "one", "struct_of", "structs_of", "values")


@dataclass
class Module:
    """The module of one contract while it is written."""

    name: str
    notices: Mapping[str, str]
    structs: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    units: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)

    def type_of(self, entry: dict[str, Json], name: str, is_input: bool) -> str:
        kind = str(entry["type"])
        array = fullmatch(r"(.+)\[\d*\]", kind)
        if array:
            inner = self.type_of({**entry, "type": array[1]}, _singular(name), is_input)
            return f"Sequence[{inner}]" if is_input else f"tuple[{inner}, ...]"
        if kind == "tuple":
            return self._struct(entry["components"], name)
        if kind in ("address", "bytes32"):
            return self._unit({"address": "Address", "bytes32": "Hash32"}[kind])
        if kind in ("bool", "string"):
            return {"bool": "bool", "string": "str"}[kind]
        if kind.startswith("bytes"):
            return "bytes"
        return self._unit(UNIT_OF[name]) if name in UNIT_OF else "int"

    def _unit(self, name: str) -> str:
        self.units.add(name)
        return name

    def _struct(self, components: Sequence[dict[str, Json]], name: str) -> str:
        names = tuple(str(each["name"]) for each in components)
        if names == SIGNATURE:
            return self._unit("Signature")
        for kind in MESSAGE_TYPES.values():
            if tuple(camel(each.name) for each in fields(kind)) == names:
                self.messages.add(kind.__name__)
                return kind.__name__
        key = tuple((str(each["name"]), str(each["type"])) for each in components)
        if key not in self.structs:
            own = STRUCTS.get(name, _title(name))
            is_taken = own in MESSAGE_TYPES or own in self.structs.values()
            self.structs[key] = f"{self.name}{own}" if is_taken else own
            self.add_class(self.structs[key], components, f"What `{self.name}` calls {name}.")
        return self.structs[key]

    def add_class(self, name: str, members: Sequence[dict[str, Json]], text: str) -> None:
        lines = []
        for each in members:
            own = snake(str(each["name"]))
            lines.append(f"    {own}: {self.type_of(each, own, False)}")
        body = "\n".join(lines) or "    pass"
        self.classes.append(
            f'@dataclass(frozen=True, slots=True)\nclass {name}:\n    """{text}"""\n\n{body}\n'
        )

    def method(self, entry: dict[str, Json]) -> str:
        own = str(entry["name"])
        inputs: list[dict[str, Json]] = entry["inputs"]
        outputs: list[dict[str, Json]] = entry["outputs"]
        named = [(snake(str(each["name"])), each) for each in inputs]
        declared = "".join(f", {n}: {self.type_of(each, n, True)}" for n, each in named)
        passed = "".join(f", {n}" for n, _ in named)
        kinds = ",".join(_canonical(each) for each in inputs)
        text = self.notices.get(f"{own}({kinds})", "")
        doc = _docstring(text) if text else ""
        method = snake(own)
        if entry["stateMutability"] not in ("view", "pure"):
            body = f'        return self._call("{own}"{passed})\n'
            return f"    def {method}(self{declared}) -> Call:\n{doc}{body}"
        types = [self.type_of(each, snake(str(each["name"])) or method, False) for each in outputs]
        result = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
        body = f'        return self._query("{own}", {_reader(types)}{passed})\n'
        return f"    def {method}(self{declared}) -> Query[{result}]:\n{doc}{body}"


def text_of(name: str, abi: Sequence[dict[str, Json]], notices: Mapping[str, str]) -> str:
    module = Module(name, notices)
    methods = [module.method(entry) for entry in abi if entry["type"] == "function"]
    events = [entry for entry in abi if entry["type"] == "event"]
    for entry in events:
        inputs: list[dict[str, Json]] = entry["inputs"]
        module.add_class(str(entry["name"]), inputs, f"An event of `{name}`.")
    names = [str(entry["name"]) for entry in events]
    return "\n".join(_parts(module, methods, names))


def _parts(module: Module, methods: Sequence[str], events: Sequence[str]) -> Iterator[str]:
    name = module.name
    yield f'"""Calls, queries and events of `{name}`.\n'
    yield 'Written by `binding_writer` from the contract; do not edit it.\n"""\n'
    yield "from collections.abc import Sequence"
    yield "from dataclasses import dataclass"
    yield "from typing import ClassVar\n"
    yield f"from quorate_contracts.generated.contract_calls import {', '.join(IMPORTED)}"
    if module.messages:
        yield f"from quorate_protocol.messages.signed import {', '.join(sorted(module.messages))}"
    yield f"from quorate_protocol.units import {', '.join(sorted(module.units))}\n\n"
    yield from (f"{text}\n" for text in module.classes)
    yield f"@dataclass(frozen=True, slots=True)\nclass {CLASSES.get(name, name)}(Contract):"
    yield f'    """The contract `{name}`."""\n\n    NAME: ClassVar[str] = "{name}"\n'
    yield from methods
    listed = "".join(f"    {each},\n" for each in events)
    yield f"\nEVENTS: tuple[type, ...] = (\n{listed})"


def _reader(types: Sequence[str]) -> str:
    if len(types) > 1:
        return "values"
    array = fullmatch(r"tuple\[(\w+), \.\.\.\]", types[0])
    kind = array[1] if array else types[0]
    if kind in PLAIN or kind in UNITS:
        return "values" if array else "one"
    return f"structs_of({kind})" if array else f"struct_of({kind})"


def _docstring(text: str) -> str:
    one_line = f'        """{text}"""'
    if len(one_line) <= WIDTH:
        return f"{one_line}\n"
    wrapped = textwrap.wrap(
        f'"""{text}', WIDTH - 3, initial_indent=" " * 8, subsequent_indent=" " * 8
    )
    return "\n".join(wrapped) + '\n        """\n'


def _canonical(entry: dict[str, Json]) -> str:
    kind = str(entry["type"])
    if not kind.startswith("tuple"):
        return kind
    parts: list[dict[str, Json]] = entry["components"]
    return f"({','.join(_canonical(each) for each in parts)}){kind[5:]}"


def snake(name: str) -> str:
    return name.lower() if name.isupper() else sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _title(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def _singular(name: str) -> str:
    return name.removesuffix("s")


def write(texts: Mapping[str, str], folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name in CONTRACTS:
        (folder / f"{snake(CLASSES.get(name, name))}.py").write_text(texts[name])
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I,F401", folder], check=True)
    subprocess.run([*ruff, "format", "-q", folder], check=True)
