"""The properties that `make prove` proves, each with a change of a contract that breaks it."""

from dataclasses import dataclass
from pathlib import Path

from contracts.mutation.mutant import Mutant

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Property:
    """A `check_` function of a contract in this folder, and a change that it must notice."""

    proofs: str
    name: str
    source: str
    old: str
    new: str

    @property
    def function(self) -> str:
        return f"check_{self.name}"

    @property
    def mutant(self) -> Mutant:
        return Mutant(self.name, self.source, self.old, self.new)


DEPLOYED = {"EscrowProofs": "Escrow", "StakesProofs": "Stakes", "LeavesProofs": None}
"""Proofs -> the contract whose code they call."""

PROPERTIES = (
    Property(
        "EscrowProofs",
        "claims_pay_no_more_than_vouchers_brought_in",
        "Escrow",
        '    assert (word & MASK128) + amount <= word >> 128, "pool"\n',
        "",
    ),
    Property(
        "EscrowProofs",
        "vouchers_charge_what_clients_allocated",
        "Escrow",
        '        assert cumulative <= word >> 196, "allocation"\n',
        "",
    ),
    Property(
        "EscrowProofs",
        "an_allocation_moves_free_money_and_nothing_else",
        "Escrow",
        '    assert (word >> 196) + amount <= MASK60, "amount"\n',
        "",
    ),
    Property(
        "EscrowProofs",
        "a_release_leaves_what_is_charged",
        "Escrow",
        "min(request >> 48, (word >> 196) - ((word >> 136) & MASK60))",
        "min(request >> 48, word >> 196)",
    ),
    Property(
        "EscrowProofs",
        "a_withdrawal_pays_what_is_free",
        "Escrow",
        "    self.withdrawals[msg.sender] = 0\n    self.free_of[msg.sender] -= amount\n",
        "    self.withdrawals[msg.sender] = 0\n",
    ),
    Property(
        "StakesProofs",
        "a_request_with_a_malleable_signature_is_refused",
        "signatures",
        '    assert sig.s <= HALF_ORDER, "signature"\n',
        "",
    ),
    Property(
        "StakesProofs",
        "a_request_is_taken_once",
        "Stakes",
        "    self.request_nonce[account] += 1\n",
        "",
    ),
    Property(
        "LeavesProofs",
        "a_tree_of_two_includes_its_leaves_and_no_other",
        "leaves",
        'assert side == 0 and hash == root, "proof"',
        'assert hash == root, "proof"',
    ),
    Property(
        "LeavesProofs",
        "both_leaves_of_a_tree_prove_themselves",
        "leaves",
        "        if side & 1 == 0:\n            hash =",
        "        if side & 1 == 1:\n            hash =",
    ),
)
