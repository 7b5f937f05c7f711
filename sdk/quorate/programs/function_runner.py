"""Runs one call of a shipped function on the provider's machine, and holds the form of its values.

This file travels with the call, so it needs only the standard library. Beside it lie `function.py`
and `call.json`. Values are JSON by their declared type, never pickles: a stranger's machine wrote
the result, and reading it must not run anything.
"""

import base64
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

RESULT, ERROR = "result.json", "error.json"
PLAIN: dict[str, Any] = {
    "none": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
}
TEXT_MAX = 2000
Shape = Any
"""A declared type as JSON: "int", ["list", T], ["tuple", [T, ...]], ["tuple*", T], ["dict", T],
["optional", T], ["object", {name: T}].
"""


def described(shape: Shape) -> str:
    """Returns the type as a person writes it: list[int]."""
    if isinstance(shape, str):
        return "None" if shape == "none" else shape
    kind, inner = shape
    if kind == "object":
        return "a value with " + ", ".join(inner)
    if kind == "tuple":
        return "tuple[" + ", ".join(described(item) for item in inner) + "]"
    if kind == "tuple*":
        return f"tuple[{described(inner)}, ...]"
    if kind == "dict":
        return f"dict[str, {described(inner)}]"
    return f"{described(inner)} | None" if kind == "optional" else f"list[{described(inner)}]"


def encode(shape: Shape, value: Any, where: str) -> Any:
    """Returns the value as JSON. TypeError names the place of what does not have its type."""
    if isinstance(shape, str):
        return _encode_plain(shape, value, where)
    kind, inner = shape
    if kind == "optional":
        return None if value is None else encode(inner, value, where)
    if kind == "dict" and isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where}: the keys of a dict must be str")
        return {key: encode(inner, item, f"{where}[{key!r}]") for key, item in value.items()}
    if kind == "object":
        fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if fields is not None and set(fields) == set(inner):
            return {key: encode(inner[key], fields[key], f"{where}.{key}") for key in inner}
    shapes = _items(kind, inner, value)
    if shapes is None:
        raise _wrong(shape, value, where)
    return [
        encode(item, part, f"{where}[{at}]") for at, (item, part) in enumerate(zip(shapes, value))
    ]


def decode(shape: Shape, tree: Any, where: str) -> Any:
    """Returns the value of a JSON tree. TypeError if the tree is not of that type."""
    if isinstance(shape, str):
        if shape == "bytes" and isinstance(tree, str):
            try:
                return base64.b64decode(tree.encode("ascii"), validate=True)
            except ValueError as error:
                raise TypeError(f"{where}: it is not base64") from error
        return _encode_plain(shape, tree, where)
    kind, inner = shape
    if kind == "optional":
        return None if tree is None else decode(inner, tree, where)
    if kind in ("dict", "object") and isinstance(tree, dict):
        if kind == "object" and set(tree) != set(inner):
            raise _wrong(shape, tree, where)
        return {
            key: decode(inner if kind == "dict" else inner[key], item, f"{where}[{key!r}]")
            for key, item in tree.items()
        }
    shapes = _items(kind, inner, tuple(tree)) if isinstance(tree, list) else None
    if kind == "list" and isinstance(tree, list):
        shapes = [inner] * len(tree)
    if shapes is None:
        raise _wrong(shape, tree, where)
    made = [
        decode(item, part, f"{where}[{at}]") for at, (item, part) in enumerate(zip(shapes, tree))
    ]
    return made if kind == "list" else tuple(made)


def _items(kind: str, inner: Any, value: Any) -> Any:
    """Returns the types of a sequence's items, or None if it is no such sequence."""
    if kind == "list" and isinstance(value, list):
        return [inner] * len(value)
    if kind == "tuple*" and isinstance(value, tuple):
        return [inner] * len(value)
    if kind == "tuple" and isinstance(value, tuple) and len(value) == len(inner):
        return inner
    return None


def _encode_plain(shape: str, value: Any, where: str) -> Any:
    if shape == "float" and type(value) is int:
        value = float(value)
    kind: Any = PLAIN[shape]
    if type(value) is not kind:
        raise _wrong(shape, value, where)
    if shape == "float" and not float("-inf") < value < float("inf"):
        raise TypeError(f"{where}: {value} has no JSON; send None or a text instead")
    return base64.b64encode(value).decode() if shape == "bytes" else value


def _wrong(shape: Shape, value: Any, where: str) -> TypeError:
    return TypeError(f"{where}: expected {described(shape)}, not {type(value).__name__}")


def to_text(tree: Any) -> str:
    """Returns JSON text that equal values always have alike."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def main() -> int:
    """Calls the function and writes its result, or its error, into the outputs."""
    here = Path(__file__).resolve().parent
    outputs = Path(os.environ.get("QUORATE_OUTPUTS", "/outputs"))
    call = json.loads((here / "call.json").read_text())
    names: dict[str, Any] = {"__name__": "quorate_function"}
    try:
        source = (here / "function.py").read_text()
        exec(compile(source, "function.py", "exec"), names)  # the user's own program
        values = {
            name: decode(shape, call["values"][name], name)
            for name, shape in call["parameters"].items()
        }
        result = names[call["name"]](**values)
        text = to_text(encode(call["result"], result, "result"))
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        traceback.print_exc()
        said = {"type": type(error).__name__, "message": str(error)[:TEXT_MAX]}
        (outputs / ERROR).write_text(to_text(said))
        return 1
    (outputs / RESULT).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
