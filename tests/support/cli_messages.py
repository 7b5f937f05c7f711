"""Collects from the code every text that a person can see: errors, prints, logs and help.

A text is read from the syntax tree: every string of several words that is no docstring and no SQL.
A value that a message names counts as one word, and the branches of a condition are separate texts.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from style.source import ROOT, files_under, relative, tree_of

FOLDERS = ("sdk", "node", "coordinator", "contracts")
WORDS_MAX = 25
TEXTS_MAX = 8  # branches of one message
VALUE = "VALUE"
SQL = re.compile(
    r"\s*(create|insert|update|delete|select|begin|where|alter|drop|pragma)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Message:
    """One text with its place."""

    path: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """How many words it has; a value counts as one."""
        return sum(any(letter.isalnum() for letter in word) for word in self.text.split())


def messages(root: Path = ROOT) -> Iterator[Message]:
    """Yields each text of the programs that a person can see."""
    for path in files_under(FOLDERS, ".py", root=root):
        tree = tree_of(path)
        known = _constants(tree)
        for node in ast.walk(tree):
            for value in _values(node):
                for text in _texts(value, known):
                    if " " in text and not SQL.match(text):
                        yield Message(relative(path, root), value.lineno, " ".join(text.split()))


def too_long(root: Path = ROOT) -> list[Message]:
    """Returns the texts with more than 25 words."""
    found = {message for message in messages(root) if message.words > WORDS_MAX}
    return sorted(found, key=lambda message: (message.path, message.line, message.text))


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Name -> value of the module's constants."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _values(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions of a node that may be a message: arguments, results and constants."""
    match node:
        case ast.Call(args=args, keywords=keywords):
            yield from args
            yield from (word.value for word in keywords)
        case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
            yield value
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield value
        case ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values):
            yield from values
        case _:
            return


def _texts(value: ast.expr, known: dict[str, ast.expr]) -> list[str]:
    """Returns the texts that an expression may give."""
    match value:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.JoinedStr(values=parts):
            whole = [""]
            for part in parts:
                whole = [one + two for one in whole for two in _part(part, known)][:TEXTS_MAX]
            return whole
        case ast.IfExp(body=first, orelse=second):
            return [*_texts(first, known), *_texts(second, known)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = _texts(right, known) or [VALUE]
            starts = _texts(left, known) or [VALUE]
            return [one + two for one in starts for two in ends][:TEXTS_MAX]
        case ast.Name(id=name) if name in known:
            return _texts(known[name], {})
        case _:
            return []


def _part(part: ast.expr, known: dict[str, ast.expr]) -> list[str]:
    if isinstance(part, ast.FormattedValue):
        return _texts(part.value, known) or [VALUE]
    return _texts(part, known)
