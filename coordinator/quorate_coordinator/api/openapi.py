"""Generates the OpenAPI 3.1 document from the table of operations and the codec's types.

Schemas follow the codec: camelCase names, 0x-hex byte strings of their width, integers above 2^53
as decimal strings, no unknown fields. Source: https://spec.openapis.org/oas/v3.1.0 and JSON Schema
2020-12.
"""

import re
import types
import typing
from enum import Enum
from typing import Any, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from quorate_coordinator.api.handlers import OPERATIONS
from quorate_protocol.codec.declared_types import SAFE_INTEGER, camel, is_value_type
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.units import WIRE_TYPES
from quorate_runtime.http.coordinator_routes import (
    BYTES,
    CAR,
    JSON,
    RAW,
    WEBSOCKETS,
    Query,
    Route,
    Routes,
)

Json = dict[str, Any]
SIGNATURE_PATTERN = "^0x[0-9a-f]{130}$"
DECIMAL_PATTERN = "^-?[0-9]{16,78}$"
PATHS: dict[str, Json] = {
    "job": {"type": "string", "pattern": "^0x[0-9a-f]{64}$"},
    "address": {"type": "string", "pattern": "^0x[0-9a-f]{40}$"},
    "cid": {"type": "string", "pattern": "^[A-Za-z0-9]{1,120}$"},
    "ticket": {"type": "string", "pattern": "^0x[0-9a-f]{64}$"},
}
ALSO_READ = {Routes.UPLOAD.path: (CAR,)}
ALSO_ANSWERED = dict.fromkeys((Routes.CONTENT.path, Routes.ATTESTATION.path), (CAR, RAW))


class Refusal(Struct, frozen=True):
    """The answer of every status of 400 and above. `code` is one of `refusals.Code`, or
    `unavailable`, or `internal`.
    """

    code: str
    sentence: str
    detail: str


class Schemas:
    """JSON Schemas of the codec's types. Classes become components that other schemas refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}

    def of(self, kind: Any) -> Json:
        if hasattr(kind, "__supertype__"):
            return self._unit(kind)
        origin = get_origin(kind)
        if origin is Envelope:
            return self._envelope(get_args(kind)[0])
        if origin in (types.UnionType, typing.Union):
            return self._union(get_args(kind))
        if origin is tuple:
            return self._tuple(get_args(kind))
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(get_args(kind)[1])}
        if is_value_type(kind):
            return self._component(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        plain: dict[Any, Json] = {
            int: _integer(-SAFE_INTEGER, None),
            str: {"type": "string"},
            bool: {"type": "boolean"},
            bytes: {"type": "string", "pattern": "^0x([0-9a-f]{2})*$"},
            type(None): {"type": "null"},
        }
        return plain[kind]

    def _unit(self, kind: Any) -> Json:
        solidity, width = WIRE_TYPES.get(kind.__name__, ("", 0))
        if solidity.startswith("uint"):
            return _integer(0, 2**width - 1)
        if solidity:
            return {"type": "string", "pattern": f"^0x[0-9a-f]{{{2 * width}}}$"}
        return (
            {"type": "string", "pattern": SIGNATURE_PATTERN}
            if kind.__name__ == "Signature"
            else self.of(kind.__supertype__)
        )

    def _tuple(self, inner: tuple[Any, ...]) -> Json:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return {"type": "array", "items": self.of(inner[0])}
        return {
            "type": "array",
            "prefixItems": [self.of(item) for item in inner],
            "minItems": len(inner),
            "maxItems": len(inner),
        }

    def _union(self, args: tuple[Any, ...]) -> Json:
        classes = [arg for arg in args if arg is not type(None)]
        schemas = [self.of(arg) for arg in classes]
        if type(None) in args:
            schemas.append({"type": "null"})
        return {"anyOf": schemas}

    def _envelope(self, message: type) -> Json:
        name = f"Envelope-{message.__name__}"
        if name not in self.components:
            properties = {"type": {"const": message.__name__}, "body": self.of(message)}
            self.components[name] = _object(
                {**properties, "sig": {"type": "string", "pattern": SIGNATURE_PATTERN}},
                _doc(message),
            )
        return _ref(name)

    def _component(self, kind: Any) -> Json:
        name = kind.__name__
        if name not in self.components:
            self.components[name] = {}  # a placeholder, because its own fields may refer to it
            properties = {camel(f.name): self.of(f.type) for f in fields(kind)}
            needed = [
                camel(f.name)
                for f in fields(kind)
                if f.default is NODEFAULT and f.default_factory is NODEFAULT
            ]
            self.components[name] = _object(properties, _doc(kind), needed)
        return _ref(name)


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _doc(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _object(properties: Json, description: str, needed: list[str] | None = None) -> Json:
    required = list(properties) if needed is None else needed
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _integer(low: int, high: int | None) -> Json:
    if high is not None and high <= SAFE_INTEGER:
        return {"type": "integer", "minimum": low, "maximum": high}
    pattern = DECIMAL_PATTERN if low < 0 else DECIMAL_PATTERN.replace("-?", "")
    return {
        "anyOf": [
            {"type": "integer", "minimum": low, "maximum": SAFE_INTEGER},
            {"type": "string", "pattern": pattern},
        ]
    }


def document(version: str) -> Json:
    schemas = Schemas()
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            schemas, operation
        )
    token = {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "Quorate <account>.<key>.<expires>.<sig>",
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quorate coordinator",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {"token": token},
        },
    }


def _operation(schemas: Schemas, operation: Route[Any]) -> Json:
    refused = {"description": "Refused.", "content": {JSON: {"schema": schemas.of(Refusal)}}}
    good = {
        "description": operation.summary,
        "content": _content(schemas, operation.answer, ALSO_ANSWERED.get(operation.path, ())),
    }
    code = "101" if operation in WEBSOCKETS else "200"
    made: Json = {
        "operationId": _identifier(operation),
        "summary": operation.summary,
        "parameters": [_in_path(name) for name in re.findall(r"{(\w+)}", operation.path)]
        + [_in_query(item) for item in operation.queries],
        "responses": {code: good, "4XX": refused, "5XX": refused},
    }
    if operation.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": _content(schemas, operation.body, ALSO_READ.get(operation.path, ())),
        }
    if operation.needs_token:
        made["security"] = [{"token": []}]
    return made


def _content(schemas: Schemas, what: object, also: tuple[str, ...]) -> Json:
    if not isinstance(what, str):
        return {JSON: {"schema": schemas.of(what)}}
    shape: Json = {} if what in (BYTES, JSON) else {"schema": {"type": "string"}}
    return {what: shape, **{name: {} for name in also}}


def _identifier(operation: Route[Any]) -> str:
    words = re.findall(r"[a-z0-9]+", operation.path.removeprefix("/v1"))
    return camel("_".join([operation.method.lower(), *words]))


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": PATHS[name]}


def _in_query(query: Query) -> Json:
    return {
        "name": query.name,
        "in": "query",
        "required": False,
        "description": query.meaning,
        "schema": {"type": "string", "pattern": query.pattern},
    }
