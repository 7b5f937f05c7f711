"""Two outputs are compared by file and byte."""

from pathlib import Path

import pytest

from quorate.programs.tree_differences import LINES_MAX, tree_differences


def tree(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"a": b"1"}, {"a": b"1"}, []),
        ({"a": b"x" * 9}, {"a": b"x" * 8 + b"y"}, ["a differs from byte 8 on"]),
        ({"a": b"12"}, {"a": b"123"}, ["a (2 and 3 bytes long) differs from byte 2 on"]),
        ({"d/a": b"1", "b": b""}, {"d/a": b"1"}, ["b is in one result only"]),
        ({"a": b""}, {"a/b": b""}, ["a is a file in one result and a folder in the other"]),
        ({"a": b"x" * (1 << 20) + b"1"}, {"a": b"x" * (1 << 20) + b"2"}, ["byte 1048576 on"]),
    ],
)
def test_a_difference_names_file_and_first_byte(
    tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes], said: list[str]
) -> None:
    found = tree_differences(tree(tmp_path / "1", first), tree(tmp_path / "2", second))
    sentences = [item.sentence for item in found][: len(said)]
    assert all(text in sentence for text, sentence in zip(said, sentences, strict=True))
    assert bool(found) is bool(said)


def test_few_differences_are_listed(tmp_path: Path) -> None:
    first = tree(tmp_path / "1", {f"f{number}": b"1" for number in range(20)})
    assert len(tree_differences(first, tree(tmp_path / "2", {}))) == LINES_MAX
