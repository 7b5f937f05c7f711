"""Takes a function out of its file: its source, the imports it uses, and the types it declares."""

import ast
import builtins
import dataclasses
import dis
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorate.programs.function_runner import Shape

ALLOWED = (
    "bool, int, float, str, bytes, None, list[...], tuple[...], dict[str, ...], `... | None`, and "
    "a dataclass of these as result"
)
CONSTANTS = (bool, int, float, str, bytes, type(None))
_PLAIN: dict[object, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    type(None): "none",
    None: "none",
}


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """What travels: the text, the name, and the types of parameters and result as shapes."""

    name: str
    text: str
    signature: inspect.Signature
    parameters: dict[str, Shape]
    result: Shape
    result_type: Any


def read_function(function: Callable[..., Any]) -> FunctionSource:
    """Reads a plain function. TypeError names the parameter or name that cannot be sent."""
    name = getattr(function, "__name__", str(function))
    if not isinstance(function, types.FunctionType) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{name}: write a plain function with def")
    if function.__closure__:
        raise TypeError(
            f"{name}: it uses {function.__code__.co_freevars[0]!r} of the function around it; pass "
            "it as an argument"
        )
    hints = typing.get_type_hints(function)
    signature = inspect.signature(function)
    parameters = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{parameter.name}: * and ** cannot be sent; name the parameters")
        if parameter.name not in hints:
            raise TypeError(f"{parameter.name}: declare its type; allowed are {ALLOWED}")
        parameters[parameter.name] = shape_of(hints[parameter.name], parameter.name)
    if "return" not in hints:
        raise TypeError(f"{name}: declare its result type; allowed are {ALLOWED}")
    result = shape_of(hints["return"], "result", is_result=True)
    text = _text(function, name)
    return FunctionSource(name, text, signature, parameters, result, hints["return"])


def shape_of(hint: Any, where: str, is_result: bool = False) -> Shape:
    """Returns the shape of a declared type. TypeError names where, and the allowed types."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and len(inside) == 1:
        return ["list", shape_of(inside[0], where, is_result)]
    if origin is dict and inside[:1] == (str,):
        return ["dict", shape_of(inside[1], where, is_result)]
    if origin is tuple and len(inside) == 2 and inside[1] is Ellipsis:
        return ["tuple*", shape_of(inside[0], where, is_result)]
    if origin is tuple:
        return ["tuple", [shape_of(item, where, is_result) for item in inside]]
    if origin in (typing.Union, types.UnionType):
        others = [item for item in inside if item is not type(None)]
        if len(others) == 1 and len(inside) == 2:
            return ["optional", shape_of(others[0], where, is_result)]
    if is_result and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint) if field.init]
        return ["object", {name: shape_of(hints[name], f"{where}.{name}", True) for name in names}]
    shown = hint.__name__ if isinstance(hint, type) and not inside else str(hint)
    raise TypeError(f"{where}: {shown} cannot be sent; allowed are {ALLOWED}")


def build_value(hint: Any, value: Any) -> Any:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        return hint(**{name: build_value(hints[name], item) for name, item in value.items()})
    if origin is list:
        return [build_value(inside[0], item) for item in value]
    if origin is dict:
        return {key: build_value(inside[1], item) for key, item in value.items()}
    if origin is tuple:
        hints_of = [inside[0]] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(build_value(item, part) for item, part in zip(hints_of, value, strict=True))
    if origin in (typing.Union, types.UnionType) and value is not None:
        return build_value(next(item for item in inside if item is not type(None)), value)
    return value


def _text(function: types.FunctionType, name: str) -> str:
    """Returns imports, constants and the function, without decorators, types and defaults."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError) as error:
        raise TypeError(f"{name}: its source is not in a file; write it into one") from error
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise TypeError(f"{name}: write a plain function with def")
    found.decorator_list, found.returns = [], None
    arguments = found.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    # Every argument is sent by name, also one that has a default here.
    arguments.args = [*arguments.posonlyargs, *arguments.args]
    arguments.posonlyargs, arguments.defaults = [], []
    arguments.kw_defaults = [None] * len(arguments.kwonlyargs)
    found.name = name
    names = sorted(_global_names(function.__code__) - set(dir(builtins)) - {name})
    lines = [_definition(each, function, name) for each in names]
    return "\n".join([*lines, ast.unparse(tree), ""])


def _global_names(code: types.CodeType) -> set[str]:
    found = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _global_names(constant)
    return found


def _definition(each: str, function: types.FunctionType, name: str) -> str:
    """Returns the line that defines a name from outside. TypeError if it cannot be sent."""
    if each not in function.__globals__:
        raise TypeError(f"{name}: it uses {each!r}, which is not defined")
    value = function.__globals__[each]
    if isinstance(value, types.ModuleType) and _is_installed(value.__name__):
        return f"import {value.__name__} as {each}"
    if type(value) in CONSTANTS:
        return f"{each} = {value!r}"
    home, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    is_named = isinstance(home, str) and isinstance(own, str) and _is_installed(home)
    if is_named and getattr(sys.modules.get(str(home)), str(own), None) is value:
        return f"from {home} import {own} as {each}"
    raise TypeError(
        f"{name}: it uses {each!r} from outside, which cannot be sent; define or import it inside "
        "the function, or send a whole folder with workdir"
    )


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return top != "__main__"
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path
