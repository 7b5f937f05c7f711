"""Tests that the OpenAPI document is made from the types, has every schema that it refers to, and
accepts what the codec accepts.
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate_coordinator.api.handlers import OPERATIONS
from quorate_coordinator.api.openapi import Schemas, document
from quorate_protocol.codec import canonical
from quorate_protocol.codec.text_writer import writer_of
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.messages.views import AccountView, InfoView, ProviderView, RunView
from quorate_protocol.refusals import Refused
from support.value_strategies import values_of

KINDS = (Envelope[Voucher], AccountView, ProviderView, InfoView, RunView, MarketHistory)


def references(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        own = {tree["$ref"]} if "$ref" in tree else set()
        return own.union(*(references(value) for value in tree.values()))
    return set().union(*(references(item) for item in tree)) if isinstance(tree, list) else set()


def signatures(value: Any) -> list[bytes]:
    match value:
        case RunView(verdict=found) | AccountView(voucher=found):
            return [found.sig] if found else []
        case Envelope(sig=sig):
            return [sig]
        case _:
            return []


def fits(schema: Any, tree: Any, components: Any) -> bool:
    """Returns whether `tree` fits `schema`, for the part of JSON Schema that the generator uses."""
    if "$ref" in schema:
        return fits(components[schema["$ref"].rpartition("/")[2]], tree, components)
    if "anyOf" in schema:
        return any(fits(item, tree, components) for item in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return tree in schema.get("enum", [schema.get("const")])
    match schema.get("type"):
        case "integer":
            return type(tree) is int and schema.get("minimum", tree) <= tree <= schema.get(
                "maximum", tree
            )
        case "string":
            return isinstance(tree, str) and re.search(schema.get("pattern", ""), tree) is not None
        case "boolean":
            return isinstance(tree, bool)
        case "null":
            return tree is None
        case "array":
            return isinstance(tree, list) and all(
                fits(schema["items"], item, components) for item in tree
            )
        case _:
            return _object_fits(schema, tree, components)


def _object_fits(schema: Any, tree: Any, components: Any) -> bool:
    if not isinstance(tree, dict):
        return False
    if "properties" not in schema:
        return all(
            fits(schema["additionalProperties"], value, components) for value in tree.values()
        )
    if not set(schema["required"]) <= tree.keys() <= schema["properties"].keys():
        return False
    return all(fits(schema["properties"][key], value, components) for key, value in tree.items())


def test_every_reference_has_its_schema() -> None:
    made = document("1")
    names = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert references(made) <= names and all(made["components"]["schemas"].values())
    assert sum(len(item) for item in made["paths"].values()) == len(OPERATIONS)
    identifiers = [
        operation["operationId"] for item in made["paths"].values() for operation in item.values()
    ]
    assert len(set(identifiers)) == len(identifiers)


def required_of(schema: Any, components: Any) -> list[str]:
    """The fields without a default."""
    named = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return list(named["required"])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_the_codec_writes_fits_its_schema(kind: Any) -> None:
    schemas = Schemas()
    schema = schemas.of(kind)

    @settings(max_examples=60, deadline=None)
    @given(values_of(kind), st.data())
    def holds(value: Any, data: st.DataObject) -> None:
        tree = json.loads(writer_of(kind)(value))
        if any(len(sig) != 65 for sig in signatures(value)):
            # the codec reads a signature of any length; the rules and the document check the length
            return
        assert fits(schema, tree, schemas.components)
        key = data.draw(st.sampled_from(sorted(required_of(schema, schemas.components))))
        wrong = {name: item for name, item in tree.items() if name != key}
        assert not fits(schema, wrong, schemas.components)
        with pytest.raises(Refused):
            canonical.from_json(kind, wrong)

    holds()
