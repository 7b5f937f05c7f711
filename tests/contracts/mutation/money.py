"""Mutants of Epochs and the tree of leaves."""

from contracts.mutation.mutant import Change, of

MONEY = (
    *of(
        "leaves",
        Change(
            "sums are not those that were posted",
            'assert final == sumFinal and held == sumHeld, "sums"',
            "pass",
            ("epoch_claims",),
        ),
    ),
    *of(
        "Epochs",
        Change(
            "any key posts",
            "    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "
            '"signer"\n    assert staticcall Stakes(STAKES).is_bonded',
            "    assert staticcall Stakes(STAKES).is_bonded",
        ),
    ),
)
