"""The properties that `make prove` proves, each with a change of a contract that breaks it."""

from dataclasses import dataclass
from pathlib import Path

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

    def broken(self, text: str) -> str:
        """The source without the rule."""
        assert text.count(self.old) == 1, f"{self.name} does not fit its source once"
        return text.replace(self.old, self.new)


DEPLOYED = {"EscrowProofs": "Escrow", "StakesProofs": "Stakes"}
"""Proofs -> the contract whose code they call."""

PROPERTIES = (
    Property(
        "EscrowProofs",
        "a_voucher_pays_a_coordinator_what_it_says_once",
        "Escrow",
        "    if not isCredit:\n        tab.drawn += added\n",
        "",
    ),
    Property(
        "EscrowProofs",
        "a_voucher_credits_another_payee",
        "Escrow",
        "    covered: uint256 = min(cumulative, tab.locked)\n",
        "    covered: uint256 = cumulative\n",
    ),
    Property(
        "EscrowProofs",
        "a_payroll_pays_from_the_balance_alone",
        "Escrow",
        "            tab.locked += added\n            tab.paid = cumulative\n",
        "            tab.paid = cumulative\n",
    ),
    Property(
        "EscrowProofs",
        "a_draw_sends_the_credit_once",
        "Escrow",
        "        if credit > 0:\n            tab.drawn = tab.paid\n",
        "        if credit > 0:\n            tab.drawn = tab.drawn\n",
    ),
    Property(
        "EscrowProofs",
        "a_lock_moves_the_balance_of_its_sender",
        "Escrow",
        '    assert tab.closesAt == 0, "closing"\n    tab.locked += amount\n',
        "    tab.locked += amount\n",
    ),
    Property(
        "EscrowProofs",
        "what_is_given_back_was_free",
        "Escrow",
        '    assert amount > 0 and amount <= tab.locked - tab.paid, "amount"\n',
        "",
    ),
    Property(
        "EscrowProofs",
        "a_tab_ends_after_its_time_and_frees_what_is_left",
        "Escrow",
        '    assert tab.closesAt != 0 and block.timestamp > tab.closesAt, "early"\n',
        '    assert tab.closesAt != 0, "early"\n',
    ),
    Property(
        "EscrowProofs",
        "closing_starts_once_and_moves_nothing",
        "Escrow",
        '    assert word != 0 and tab.closesAt == 0, "closing"\n',
        '    assert word != 0, "closing"\n',
    ),
    Property(
        "EscrowProofs",
        "a_withdrawal_pays_what_the_balance_has",
        "balances",
        '    assert amount <= words._balance(word), "amount"\n'
        "    self.accounts[account] = word - amount\n",
        "    self.accounts[account] = word - amount\n",
    ),
    Property(
        "EscrowProofs",
        "a_module_takes_what_the_balance_has",
        "balances",
        "    self._debit(sender, amount)\n    self._credit(receiver, amount)\n",
        "    self._credit(receiver, amount)\n",
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
)
