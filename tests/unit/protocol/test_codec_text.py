"""Tests that the text writer is canonical: the standard JSON encoder writes the same bytes."""

from collections.abc import Callable

import pytest
from msgspec import Struct

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Amount, Hash32, Label
from sim.run import play


def test_everything_that_a_market_sends_and_publishes_is_canonical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[str] = set()

    def checked(write: Callable[..., bytes]) -> Callable[..., bytes]:
        def run(*args: object) -> bytes:
            data = write(*args)
            assert canonical.canonical(canonical.parse(data, len(data))) == data
            seen.add(type(args[-1]).__name__)
            return data

        return run

    monkeypatch.setattr(text_writer, "encode", checked(text_writer.encode))
    monkeypatch.setattr(text_writer, "enclose", checked(text_writer.enclose))
    for seed in (2, 5):
        assert play(seed)[2] is None
    assert {"Receipt", "JobSpec", "AssignmentSent", "VerdictSent"} <= seen


class Leaf(Struct, frozen=True):
    amount: Amount
    label: Label
    text: str
    is_good: bool = False
    note: str | None = None


class Other(Struct, frozen=True):
    digests: tuple[Hash32, ...]
    by_name: dict[str, int]
    by_number: dict[int, str]
    zeta: int = 0


class Tree(Struct, frozen=True):
    some: Leaf | Other
    perhaps: Leaf | None
    many: tuple[Leaf | Other | None, ...]
    pair: tuple[int, str]


LEAF = Leaf(Amount(2**60), Label.QUORUM_2, 'a"\\ü\n\u2028\x00😀', True, "")
OTHER = Other((Hash32(b"\x02" * 32),), {'b"': 1, "a": -(2**70)}, {10: "x", 9: "y"})


def test_each_type_is_written_in_its_defined_form() -> None:
    assert canonical.to_json(Tree(OTHER, None, (LEAF, None), (2**53 + 1, "x"))) == {
        "some": {
            "kind": "Other",
            "digests": ["0x" + "02" * 32],
            "byName": {'b"': 1, "a": str(-(2**70))},
            "byNumber": {"10": "x", "9": "y"},
            "zeta": 0,
        },
        "perhaps": None,
        "many": [
            {
                "kind": "Leaf",
                "amount": str(2**60),
                "label": 2,
                "text": LEAF.text,
                "isGood": True,
                "note": "",
            },
            None,
        ],
        "pair": [str(2**53 + 1), "x"],
    }


@pytest.mark.parametrize(
    "tree", [Tree(OTHER, None, (LEAF,), (1, "")), Tree(LEAF, LEAF, (), (0, "x"))]
)
def test_each_type_is_read_back_and_is_canonical(tree: Tree) -> None:
    data = canonical.encode(tree)
    assert canonical.canonical(canonical.parse(data, len(data))) == data
    assert canonical.decode(Tree, data) == tree


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"pair": [1, 2]}, "pair"),
        ({"perhaps": {"amount": -1, "label": 2, "text": ""}}, "perhaps.amount"),
        ({"many": [None, {"kind": "Leaf", "amount": 1, "label": 9, "text": ""}]}, "many[1].label"),
        (
            {"some": {"kind": "Other", "digests": ["0x"], "byName": {}, "byNumber": {}}},
            "some.digests[0]",
        ),
        ({"some": {"kind": "Twig"}}, "some"),
    ],
)
def test_a_refusal_names_the_field(change: dict[str, object], path: str) -> None:
    tree = canonical.to_json(Tree(OTHER, None, (LEAF,), (1, "")))
    with pytest.raises(Refused) as caught:
        canonical.from_json(Tree, {**tree, **change})
    assert caught.value.detail.startswith(f"{path}: expected")
