"""Decides which files of a working folder stay behind, by rules in the form of .gitignore.

A folder's rules come from its `.quorateignore`, or else from its `.gitignore`. Rules of a folder
hold for everything below it, and later rules win (https://git-scm.com/docs/gitignore). Version
control, caches, virtual environments and `.env` files stay behind unless a rule says `!name`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import UsageError

IGNORE_FILES = (".quorateignore", ".gitignore")
FILE_BYTES_MAX = 64 * 1024
RULES_MAX = 2_000
# `.env` usually holds passwords, and the owner of a provider's machine can read what is sent.
ALWAYS = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".DS_Store",
    ".env",
    *IGNORE_FILES,
)


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line. `base` is the folder of its file, relative to the working folder, "" for itself."""

    base: str
    pattern: re.Pattern[str]
    is_negated: bool
    needs_folder: bool

    def matches(self, path: str, is_folder: bool) -> bool:
        """Returns whether the rule is about this path, which is relative to the working folder."""
        if self.needs_folder and not is_folder:
            return False
        if self.base and not path.startswith(f"{self.base}/"):
            return False
        return self.pattern.fullmatch(path[len(self.base) + 1 if self.base else 0 :]) is not None


def default_rules() -> tuple[IgnoreRule, ...]:
    return tuple(_rule("", line) for line in ALWAYS)


def read_rules(folder: Path, base: str) -> tuple[IgnoreRule, ...]:
    """Returns the rules of one folder, in their order. UsageError if its file is too large."""
    for name in IGNORE_FILES:
        path = folder / name
        if not path.is_file():
            continue
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        lines = [line for line in map(_meaning, data.decode(errors="replace").splitlines()) if line]
        if len(data) > FILE_BYTES_MAX or len(lines) > RULES_MAX:
            raise UsageError(
                f"workdir: {path} is too large; at most {RULES_MAX} lines and {FILE_BYTES_MAX} "
                "bytes are read"
            )
        return tuple(_rule(base, line) for line in lines)
    return ()


def is_ignored(rules: tuple[IgnoreRule, ...], path: str, is_folder: bool) -> bool:
    """Returns what the last matching rule says; a path without rule is kept."""
    for rule in reversed(rules):
        if rule.matches(path, is_folder):
            return not rule.is_negated
    return False


def _meaning(line: str) -> str:
    """Returns the line without comment and trailing spaces."""
    text = line.rstrip("\r\n")
    return "" if text.startswith("#") else text.rstrip()


def _rule(base: str, line: str) -> IgnoreRule:
    is_negated = line.startswith("!")
    text = line.removeprefix("!").removeprefix("\\")
    needs_folder = text.endswith("/")
    text = text.rstrip("/")
    is_anchored = "/" in text
    expression = _expression(text.lstrip("/"))
    return IgnoreRule(
        base,
        re.compile(expression if is_anchored else f"(?:.*/)?{expression}"),
        is_negated,
        needs_folder,
    )


def _expression(text: str) -> str:
    """Returns the regular expression of one pattern: `*`, `?`, `[a-z]` and `**`."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif text.startswith("**", at):
            parts.append(".*")
            at += 2
        elif text[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif text[at] == "?":
            parts.append("[^/]")
            at += 1
        elif text[at] == "[" and "]" in text[at + 2 :]:
            end = text.index("]", at + 2)
            inner = text[at + 1 : end]
            inside = inner.removeprefix("!").replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^' if inner.startswith('!') else ''}{inside}]")
            at = end + 1
        else:
            parts.append(re.escape(text[at]))
            at += 1
    return "".join(parts)
