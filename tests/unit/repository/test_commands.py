"""Tests that the command line's own parser understands every `quorate ...` command in the
documents.

Nothing is executed. Lines of shell blocks are parsed whole. A sentence may mention half a command
(`quorate plan -f`); then each of its commands and options must exist.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from quorate.cli.app import answer, app
from support import cli_commands, cli_messages

ROOT = Path(__file__).resolve().parents[3]
PLANS = ("roadmap.md",)  # names commands that are not built
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in PLANS),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`quorate ([^`]+)`")
TYPED = re.compile(r"^(?:.*/bin/)?quorate (.*)|^.*\bcompose .* run --rm client (.*)")
"""A line of a shell block: the program, by name or path, or the service of Compose that runs it."""


def lines() -> Iterator[tuple[str, str]]:
    """Yields (document, the words after `quorate`) for each line of a shell block."""
    for path in DOCUMENTS:
        for kind, block in BLOCK.findall(path.read_text()):
            for line in ("" if kind not in ("", "sh") else block).replace("\\\n", " ").splitlines():
                if found := TYPED.match(line):
                    yield path.name, found[1] or found[2]


def spans() -> Iterator[tuple[str, str]]:
    """Yields (document, the words after `quorate`) for each command in a sentence."""
    for path in DOCUMENTS:
        for found in SPAN.findall(FENCED.sub("", path.read_text())):
            yield path.name, " ".join(found.split())


class UnknownError(Exception):
    """The command line has no such command or option."""


def parse(words: list[str]) -> None:
    """Raises the parser's own usage error for what the command line would refuse."""
    command: Any = get_command(app)
    name, context = "quorate", None
    while True:
        context = command.make_context(name, words, parent=context)
        if not isinstance(command, TyperGroup):
            return
        name, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )


def look(words: list[str]) -> None:
    """Raises UnknownError for a command or option that does not exist.

    It ignores values and missing arguments.
    """
    command: Any = get_command(app)
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        if word.startswith("-"):
            options = (item for item in command.params if item.param_type_name == "option")
            option = next(
                (
                    item
                    for item in options
                    if word.partition("=")[0] in (*item.opts, *item.secondary_opts)
                ),
                None,
            )
            if option is None:
                raise UnknownError(word)
            _, is_joined, value = word.partition("=")
            if not option.is_flag and not is_joined:
                value = next(rest, "")
            if value and value not in getattr(option.type, "choices", [value]):
                raise UnknownError(f"{word} {value}")
        elif isinstance(command, TyperGroup):
            command = command.get_command(
                command.make_context("", [], resilient_parsing=True), word
            )
            if command is None:
                raise UnknownError(word)


@pytest.mark.parametrize(("document", "line"), sorted({*lines()}))
def test_every_documented_command_line_parses(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if "..." in words:  # it stands for more words
        look([word for word in words if word != "..."])
    else:
        parse(words)


@pytest.mark.parametrize(("document", "span"), sorted({*spans()}))
def test_commands_and_options_in_sentences_exist(document: str, span: str) -> None:
    look([word for word in shlex.split(span) if word != "..."])


def test_documents_contain_commands() -> None:
    found = {document for document, _ in lines()}
    assert {"README.md", "client.md", "owner.md", "operator.md"} <= found, found
    assert len({*lines()}) >= 40 and len({*spans()}) >= 20


@pytest.mark.parametrize(
    "line",
    [
        "deposit --amount 25",
        "frobnicate",
        "node init --cordinator x",
        "deposit",
        "run x --max-price",
        "node init --rentals --egress hf.co",
    ],
)
def test_unknown_commands_and_options_are_reported(line: str) -> None:
    with pytest.raises(Exception) as caught:
        parse(line.split())
    assert getattr(caught.value, "exit_code", None) == 2, repr(caught.value)
    if line not in ("deposit", "run x --max-price"):
        with pytest.raises(UnknownError):
            look(line.split())


def test_every_command_prints_json_on_request() -> None:
    assert len(list(cli_commands.commands())) > 40
    assert cli_commands.without_json() == ["shell", "cp", "forward", "mcp", "stream"], (
        "they hand over"
    )


def test_every_message_has_at_most_25_words() -> None:
    assert len(list(cli_messages.messages())) > 1_000
    long = [
        f"{item.path}:{item.line}: {item.words}: {item.text}" for item in cli_messages.too_long()
    ]
    assert long == []


CID = "bafkreig5lkvyutsjj3bd6njovcitvugpprjdlrhxdwkco4md6rvphse7rm"
HOMELESS = (
    *("ps", "logs x", "events x", "describe x", "get x", "offers", "pools", "market", "balance"),
    *("spend", "lock", "data ls", f"data stat {CID}", f"data pin {CID}", "data gc", "data serve"),
    *("node check", "node health", "node status", "node pause", "node price 1", "node withdraw"),
    *("node leave", "node rotate", "node up", "coordinator health", "coordinator status"),
    *("coordinator report", "coordinator withdraw", "coordinator up", "withdraw", "unlock"),
)


def test_command_on_a_mistyped_home_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUORATE_PASSWORD", "a passphrase")
    for words in HOMELESS:
        code = answer([*words.split(), "--home", str(tmp_path / "mistyped")])
        assert code != 0 or words == "lock", words
        assert list(tmp_path.iterdir()) == [], words


def test_a_long_message_is_found_through_its_values_and_branches(tmp_path: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    many = " ".join(["word"] * 23)
    (folder / "a.py").write_text(
        f'END = "two more"\nraise Refused(f"{{name}} {{END if late else \'\'}} {many}")\n'
    )
    (found,) = cli_messages.too_long(tmp_path)
    assert (found.path, found.line, found.words) == ("sdk/a.py", 2, 26)
