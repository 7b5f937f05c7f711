"""Reads YAML from strangers without guessed types and with bounds.

Of YAML's implicit types only null, true/false and plain decimal integers are kept. `1.10`, `1:30`,
`010`, `on` and dates stay text. So a price never becomes a float, nor an environment variable a
boolean. Aliases, depth, expanded values and bytes are bounded. Repeated keys are refused, and `<<`
does not merge.
"""

import re
from typing import Any

import yaml

from quorate.base.errors import UsageError

BYTES_MAX = 256 * 1024
ALIASES_MAX = 64
NODES_MAX = 20_000
DEPTH_MAX = 32
Tree = Any  # YAML values: None, bool, int, str, list, dict; the job file's model checks them


class _Loader(yaml.SafeLoader):
    """A SafeLoader with fewer implicit types, a count of aliases, and no repeated keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML copies it per class on the first add

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.aliases = 0
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Counts aliases and depth before anything is built."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > ALIASES_MAX:
                raise UsageError(f"job file: more than {ALIASES_MAX} aliases (*name)")
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise UsageError(f"job file: nested deeper than {DEPTH_MAX} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Tree]:
    tree: dict[str, Tree] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise UsageError(
                f"job file: line {key_node.start_mark.line + 1}: a key must be plain text"
            )
        if key in tree:
            raise UsageError(
                f"job file: line {key_node.start_mark.line + 1}: the key {key[:64]!r} is "
                "given twice"
            )
        tree[key] = loader.construct_object(value_node, deep=True)
    return tree


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(?:~|null|)\Z"), ["~", "n", ""]
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)\Z"), ["t", "f"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z"), list("-0123456789")
)


def load_yaml(data: bytes) -> Tree:
    """Returns the document of a job file. `UsageError` names line and column."""
    if len(data) > BYTES_MAX:
        raise UsageError(f"job file: it has {len(data)} bytes; at most {BYTES_MAX} are allowed")
    try:
        loader = _Loader(data.decode())
        tree = loader.get_single_data()
    except UnicodeDecodeError as error:
        raise UsageError(f"job file: it is not UTF-8 at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise UsageError(
            f"job file: it is not valid YAML: {' '.join(str(error).split())[:300]}"
        ) from error
    _check_expanded(tree)
    return tree


def _check_expanded(tree: Tree) -> None:
    # Aliases share one object in memory. Counting every visit bounds the work of later readers.
    pending, visits = [tree], 0
    while pending:
        visits += 1
        if visits > NODES_MAX:
            raise UsageError(f"job file: more than {NODES_MAX} values after expanding its aliases")
        node = pending.pop()
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
