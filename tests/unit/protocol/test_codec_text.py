"""The short cut writes what the codec writes, to the byte: over everything that simulated
markets send and publish.
"""

import pytest
from msgspec import Struct

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.units import Amount, Hash32, Label
from sim.run import play


@pytest.mark.rule("3.2")
def test_a_whole_market_is_written_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    short, kinds = text_writer.encode, set[str]()

    def both(value: object) -> bytes:
        data = short(value)
        assert data == canonical.encode(value)
        kinds.add(type(value).__name__)
        return data

    enclose = text_writer.enclose

    def enclosed(name: str, write: text_writer.Writer, value: object) -> bytes:
        data = enclose(name, write, value)
        assert data == canonical.canonical(
            {name: {"kind": type(value).__name__, **canonical.to_json(value)}}
        )
        kinds.add(type(value).__name__)
        return data

    monkeypatch.setattr(text_writer, "encode", both)
    monkeypatch.setattr(text_writer, "enclose", enclosed)
    for seed in (2, 5):
        assert play(seed)[2] is None
    assert {"Receipt", "JobSpec", "AssignmentSent", "VerdictSent"} <= kinds


class Leaf(Struct, frozen=True):
    amount: Amount
    label: Label
    text: str
    is_good: bool = False
    note: str | None = None


class Other(Struct, frozen=True):
    digests: frozenset[Hash32]
    by_name: dict[str, int]
    zeta: int = 0


class Tree(Struct, frozen=True):
    some: Leaf | Other
    perhaps: Leaf | None
    many: tuple[Leaf | Other | None, ...]
    pair: tuple[int, str]


def test_every_form_is_written_the_same() -> None:
    leaf = Leaf(Amount(2**60), Label.QUORUM_2, 'a"\\ü\n\u2028\x00😀', True, "")
    other = Other(frozenset({Hash32(b"\x02" * 32), Hash32(b"\x01" * 32)}), {"b": 1, "a": -(2**70)})
    tree = Tree(other, None, (leaf, None, other), (2**53, "x"))
    assert text_writer.encode(tree) == canonical.encode(tree)
    assert text_writer.encode(Tree(leaf, leaf, (), (2**53 + 1, ""))) == canonical.encode(
        Tree(leaf, leaf, (), (2**53 + 1, ""))
    )
