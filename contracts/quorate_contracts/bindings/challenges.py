"""The Challenges contract: challenges of epochs, and the halt of a coordinator that vanished
(PROTOCOL §6).
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_contracts.bindings.epochs import leaf_words, sibling_words
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import Address, Amount, UnixSeconds

SUCCESSORS = 24  # epochs of one day at most
_VOID_GAS = 450_000


@dataclass(frozen=True, slots=True)
class Demand:
    """An open demand for a leaf. All zero if there is none."""

    due: Amount  # final credit that the coordinator must show
    answer_by: UnixSeconds
    demander: Address


@dataclass(frozen=True, slots=True)
class EpochDemand:
    """An open demand for an epoch. All zero if there is none."""

    epoch: int
    post_by: UnixSeconds
    demander: Address


@dataclass(frozen=True, slots=True)
class Filing:
    """What a halted coordinator owed an account beyond its last epoch."""

    promised: Amount
    credited: Amount
    shortage: Amount


@dataclass(frozen=True, slots=True)
class Challenges(Contract):
    """Voids epochs and halts coordinators."""

    NAME: ClassVar[str] = "Challenges"

    def challenge_statement(
        self,
        coordinator: Address,
        number: int,
        statement: Envelope[Statement],
        leaf: Leaf,
        proof: Proof,
        successors: int = SUCCESSORS,
    ) -> Call:
        """Voids epoch `number`, whose leaf of the statement's account is below the statement.
        `successors` is at least how many epochs were posted after it.
        """
        gas = _void_gas(successors) + 4_000 * len(proof.siblings)
        return self._call(
            "challenge_statement",
            gas,
            coordinator,
            number,
            *_statement_words(statement),
            *_shown(leaf, proof),
        )

    def challenge_leaf(
        self,
        coordinator: Address,
        number: int,
        shown: tuple[Leaf, Proof],
        old_number: int,
        old: tuple[Leaf, Proof],
        successors: int = SUCCESSORS,
    ) -> Call:
        """Voids epoch `number`, whose leaf of an account has less final credit than in an older
        epoch that is not void.
        """
        siblings = len(shown[1].siblings) + len(old[1].siblings)
        gas = _void_gas(successors) + 4_000 * siblings
        return self._call(
            "challenge_leaf", gas, coordinator, number, *_shown(*shown), old_number, *_shown(*old)
        )

    def demand_leaf(
        self, coordinator: Address, number: int, statement: Envelope[Statement]
    ) -> Call:
        """Demands, for a bond of `jury_gas_fee`, that the coordinator shows the statement's account
        its leaf in epoch `number`.
        """
        return self._call("demand_leaf", 350_000, coordinator, number, *_statement_words(statement))

    def demand_old_leaf(
        self, coordinator: Address, number: int, old_number: int, old: Leaf, proof: Proof
    ) -> Call:
        """Demands a leaf of an account without a statement, by its leaf in an older epoch."""
        gas = 350_000 + 4_000 * len(proof.siblings)
        return self._call(
            "demand_old_leaf", gas, coordinator, number, old_number, *_shown(old, proof)
        )

    def answer(
        self,
        coordinator: Address,
        number: int,
        account: Address,
        shown_in: int,
        leaf: Leaf,
        proof: Proof,
    ) -> Call:
        """Answers a demand of epoch `number` by the account's leaf in it or in a later epoch."""
        gas = 250_000 + 4_000 * len(proof.siblings)
        return self._call(
            "answer", gas, coordinator, number, account, shown_in, *_shown(leaf, proof)
        )

    def close_demand(
        self, coordinator: Address, number: int, account: Address, successors: int = SUCCESSORS
    ) -> Call:
        """Voids an epoch whose leaf nobody showed in time."""
        return self._call("close_demand", _void_gas(successors), coordinator, number, account)

    def revoke(self, number: int, successors: int = SUCCESSORS) -> Call:
        """Voids the sender's own epochs from `number` on; its bond pays the penalty."""
        return self._call("revoke", _void_gas(successors), number)

    def demand_epoch(self, coordinator: Address, statement: Envelope[Statement]) -> Call:
        """Demands, for a bond, the epoch for which a statement was signed."""
        return self._call("demand_epoch", 300_000, coordinator, *_statement_words(statement))

    def close_epoch_demand(self, coordinator: Address) -> Call:
        """Ends the demand for an epoch that is final now."""
        return self._call("close_epoch_demand", 200_000, coordinator)

    def halt(self, coordinator: Address) -> Call:
        """Halts a coordinator that did not post the epoch that was demanded."""
        return self._call("halt", 450_000, coordinator)

    def file(self, coordinator: Address, statement: Envelope[Statement]) -> Call:
        """Files what a halted coordinator promised, for a share of its bond."""
        return self._call("file", 250_000, coordinator, *_statement_words(statement))

    def credit_filing(self, coordinator: Address, leaf: Leaf, proof: Proof) -> Call:
        """Shows what the last epoch credits an account that filed a statement."""
        gas = 250_000 + 4_000 * len(proof.siblings)
        return self._call("credit_filing", gas, coordinator, *_shown(leaf, proof))

    def take_share(self, coordinator: Address, account: Address) -> Call:
        """Credits a filing's share of the bond."""
        return self._call("take_share", 150_000, coordinator, account)

    def withdraw(self, account: Address) -> Call:
        """Pays an account what this contract credits to it."""
        return self._call("withdraw", 120_000, account)

    def credits(self, account: Address) -> Query[Amount]:
        """What an account can withdraw."""
        return self._query("credits", Amount, account)

    def burned(self) -> Query[Amount]:
        """What nothing can move any more."""
        return self._query("burned", Amount)

    def pot(self, coordinator: Address) -> Query[Amount]:
        """The part of a halted coordinator's bond that filings share."""
        return self._query("pots", Amount, coordinator)

    def shortages(self, coordinator: Address) -> Query[Amount]:
        """The sum of all filings against a halted coordinator."""
        return self._query("shortages", Amount, coordinator)

    def demand(self, coordinator: Address, number: int, account: Address) -> Query[Demand]:
        """The open demand for an account's leaf."""
        return self._query("demand", Demand, coordinator, number, account)

    def epoch_demand(self, coordinator: Address) -> Query[EpochDemand]:
        """The open demand for an epoch."""
        return self._query("epoch_demand", EpochDemand, coordinator)

    def filing(self, coordinator: Address, account: Address) -> Query[Filing]:
        """What was filed for an account."""
        return self._query("filing", Filing, coordinator, account)


def _statement_words(signed: Envelope[Statement]) -> tuple[object, ...]:
    s = signed.message
    body = (s.provider, s.final, s.held, s.epoch, s.seq, s.receipts_root)
    return body, words(signed.sig)


def _shown(leaf: Leaf, proof: Proof) -> tuple[object, ...]:
    siblings = [sibling_words(node) for node in proof.siblings]
    return leaf_words(leaf), proof.position, siblings


def _void_gas(successors: int) -> int:
    return _VOID_GAS + 10_000 * successors
