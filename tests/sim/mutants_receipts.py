"""Broken rules of receipts: what `quorate verify`, client and node refuse.

Each mutant leaves out one check by its name. A false receipt of `forgery` or `forgery_terms` that
no other check refuses must then be noticed.
"""

from collections.abc import Callable, Iterator

from quorate_protocol.messages.receipt import Check
from quorate_protocol.rules.receipts import receipt_checks
from sim.mutants import Mutant, Patch, only

ALL_SHOWN = only(lambda plan: plan.unbacked_chance > 0)  # forgeries of all receipts of the market


def without(name: str) -> Callable[[Patch], None]:
    """A mutation that leaves out all checks of this name, whatever their number in brackets is."""
    checks = receipt_checks._checks

    def remaining(*arguments: object) -> Iterator[Check]:
        return (
            check
            for check in checks(*arguments)  # type: ignore[arg-type]
            if check.name.partition("[")[0] != name
        )

    return lambda patch: patch.setattr(receipt_checks, "_checks", remaining)


MUTANTS = (
    Mutant("a stranger alters a receipt", "I10", without("hash:evidence"), ALL_SHOWN),
    Mutant("a draw passes over providers in silence", "I9", without("draw"), ALL_SHOWN),
    Mutant("the last draw is believed to be empty", "I9", without("exhausted"), ALL_SHOWN),
    Mutant(
        "a receipt shows other skips than the CommitSet", "I9", without("hash:skips"), ALL_SHOWN
    ),
    Mutant("a skip has any date", "I9", without("time:skip"), ALL_SHOWN),
    Mutant(
        "a CommitReceipt may be of another commit", "I9", without("hash:commitReceipt"), ALL_SHOWN
    ),
    Mutant("a CommitReceipt has any date", "I9", without("time:commit"), ALL_SHOWN),
    Mutant("the first round need not be the primary's", "I9", without("round"), ALL_SHOWN),
    Mutant("a batch closes before its round", "I9", without("closedAt"), ALL_SHOWN),
    Mutant("a witness may be dropped", "I9", without("witness:set"), ALL_SHOWN),
    Mutant("a witness may have seen another Ack", "I9", without("witness:ack"), ALL_SHOWN),
    Mutant("any fee is charged", "I4", without("order:fee"), ALL_SHOWN),
    Mutant("any session pays", "I4", without("order:session"), ALL_SHOWN),
    Mutant("a session pays past its end", "I4", without("time:ack"), ALL_SHOWN),
    Mutant("assignments have other terms than the order", "I4", without("terms"), ALL_SHOWN),
    Mutant("results of another image count", "I3", without("class"), ALL_SHOWN),
    Mutant("a verdict names any group", "I3", without("verdict:group"), ALL_SHOWN),
    Mutant("a verdict accepts too few", "I3", without("verdict:enough"), ALL_SHOWN),
    Mutant("a verdict leaves undecided what agrees", "I3", without("verdict:undecided"), ALL_SHOWN),
)
