"""Drives Challenges with the same calls as the model: void epochs, demands, and a halt."""

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from contracts.market import BOSS
from contracts.money_machine import CLIENTS, OWNERS, WATCHER, WINDOW, Money
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.rules.epoch_tree import prove

RESPONSE, AFTER, HELD = DEVNET.challenge_response, DEVNET.halt_after, DEVNET.halt_held


class ChallengedMoney(Money):
    """A state machine in which epochs become void, and a coordinator vanishes."""

    def _statement(self, provider: int, final: int, epoch: int) -> Envelope[Statement]:
        signer = self.side.statement_key
        return self.world.statement(OWNERS[provider], final, epoch, signer=signer)

    def _challenge_statement(self, number: int, epoch: int, provider: int, final: int) -> None:
        statement = self._statement(provider, final, epoch)
        call = self.world.contracts.challenges.challenge_statement(
            self.c, number, statement, *prove(self.trees[number - 1], OWNERS[provider])
        )
        model, now = self.model, self.world.evm.now
        self.both(
            WATCHER, call, lambda: model.challenge_statement(number, epoch, provider, final, now)
        )

    def _challenge_leaf(self, number: int, old: int, provider: int) -> None:
        shown = [prove(self.trees[each - 1], OWNERS[provider]) for each in (number, old)]
        call = self.world.contracts.challenges.challenge_leaf(
            self.c, number, shown[0], old, shown[1]
        )
        model, now = self.model, self.world.evm.now
        self.both(WATCHER, call, lambda: model.challenge_leaf(number, old, provider, now))

    def _demand(self, number: int, provider: int, final: int) -> None:
        statement = self._statement(provider, final, 1)
        call = self.world.contracts.challenges.demand_leaf(self.c, number, statement)
        model, now = self.model, self.world.evm.now
        self.both(WATCHER, call, lambda: model.demand_leaf(number, provider, final, now))

    def _answer(self, number: int, provider: int, shown_in: int) -> None:
        owner = OWNERS[provider]
        call = self.world.contracts.challenges.answer(
            self.c, number, owner, shown_in, *prove(self.trees[shown_in - 1], owner)
        )
        model, now = self.model, self.world.evm.now
        self.both(BOSS.address, call, lambda: model.answer(number, provider, shown_in, now))

    def _close(self, number: int, provider: int) -> None:
        call = self.world.contracts.challenges.close_demand(self.c, number, OWNERS[provider])
        model, now = self.model, self.world.evm.now
        self.both(BOSS.address, call, lambda: model.close_demand(number, provider, now))

    @rule(
        client=st.integers(0, 1),
        short=st.integers(0, 1),
        ahead=st.integers(0, 1),
        seconds=st.sampled_from([0, WINDOW - 1, WINDOW]),
    )
    def an_epoch_meets_a_statement(self, client: int, short: int, ahead: int, seconds: int) -> None:
        number = self._funded_epoch(client, 100)
        if number:
            self.world.evm.travel(seconds)
            final = self.model.newest()[0] + short
            self._challenge_statement(number, number + ahead, 0, final)
            self._claim(number, 0)

    @rule(client=st.integers(0, 1), short=st.integers(0, 1))
    def an_epoch_becomes_void_after_the_next_one(self, client: int, short: int) -> None:
        """The later one is void with it, and its number is not used again."""
        number = self._funded_epoch(client, 100)
        if number and self._funded_epoch(client, 100) == number + 1:
            final = self.model.posted[number - 1][1][0] + short
            self._challenge_statement(number, number, 0, final)
            self.world.evm.travel(WINDOW)
            self._claim(number + 1, 0)
            self._funded_epoch(client, 100)

    @rule(short=st.integers(0, 1), spare=st.integers(0, 1))
    def an_epoch_without_money_meets_a_statement(self, short: int, spare: int) -> None:
        self.deposit_and_allocate(0, 100)
        charged = self.model.pool
        finals, own = self.model.newest(), self.model.clients[0].charged
        first = charged + 20 - finals[1] - finals[2]
        self._post((first - spare, *finals[1:]), 5, [(0, own + 20)])
        if self.trees and len(self.trees) in self.model.valid():
            self._challenge_statement(len(self.trees), 1, 0, first - spare + 5 + short)

    @rule(seconds=st.sampled_from([WINDOW - 1, WINDOW]), provider=st.integers(0, 1))
    def credit_is_shifted_between_two_accounts(self, seconds: int, provider: int) -> None:
        number = self._funded_epoch(0, 100)
        if number:
            first, second, third = self.model.newest()
            self._post((first - 1, second + 1, third), 0, [])
        if number and len(self.trees) == number + 1:
            self.world.evm.travel(seconds)
            self._challenge_leaf(number, number, provider)
            self._challenge_leaf(number + 1, number, provider)
            self._claim(number, 0)
            self.world.evm.travel(WINDOW)
            self._claim(number + 1, 1)

    @rule(
        seconds=st.sampled_from([RESPONSE, RESPONSE + 1]),
        short=st.integers(0, 1),
        is_answered=st.booleans(),
    )
    def a_leaf_is_demanded(self, seconds: int, short: int, is_answered: bool) -> None:
        number = self._funded_epoch(0, 100)
        if not number:
            return
        self._demand(number, 0, self.model.newest()[0] + short)
        self._demand(number, 0, 1)
        self.world.evm.travel(seconds)
        if is_answered:
            self._answer(number, 0, number)
        self._close(number, 0)
        self.world.evm.travel(WINDOW)
        self._claim(number, 0)

    @rule(client=st.integers(0, 1))
    def an_answer_shows_a_unit_too_little(self, client: int) -> None:
        number = self._funded_epoch(client, 100)
        if number:
            self._demand(number, 0, self.model.newest()[0] + 1)
            self._answer(number, 0, number)

    @rule(client=st.integers(0, 1))
    def an_account_has_the_same_credit_twice(self, client: int) -> None:
        number = self._funded_epoch(client, 100)
        if number and self._funded_epoch(client, 100) == number + 1:
            self._challenge_leaf(number + 1, number, 1)

    @precondition(lambda self: self.trees and not self.model.halted_at)
    @rule()
    def held_credits_wait_for_their_second(self) -> None:
        self._funded_epoch(0, 100)
        self.a_coordinator_vanishes(wait=AFTER + 1, saved=0, early=1, held=7, spare=1000)

    @rule(later=st.integers(0, 1), provider=st.integers(0, 1))
    def demands_of_two_epochs_end_one_after_the_other(self, later: int, provider: int) -> None:
        number = self._funded_epoch(0, 100)
        if number and self._funded_epoch(0, 100) == number + 1:
            self._demand(number + 1, 1, 1 + self.model.newest()[1])
            self._demand(number, 0, 1)
            self.world.evm.travel(RESPONSE)
            self._answer(number, 0, number + later)
            self.world.evm.travel(WINDOW)
            self._claim(number, 0)
            self._close(number + 1, 1)
            self._claim(number, 0)
            self._claim(number + 1, provider)

    @precondition(lambda self: len(self.trees) > 1 and not self.model.halted_at)
    @rule(
        wait=st.sampled_from([AFTER, AFTER + 1]),
        saved=st.integers(0, 3),
        early=st.integers(0, 1),
        held=st.sampled_from([0, 1, 7]),
        spare=st.sampled_from([0, 5, 1000]),
    )
    def a_coordinator_vanishes(
        self, wait: int, saved: int, early: int, held: int, spare: int
    ) -> None:
        """Its last epoch leaves `spare` of the pool for held credits, or what is there."""
        self.deposit_and_allocate(0, 100)
        first, second, third = self.model.newest()
        own, rest = self.model.clients[0].charged, self.model.pool + 10 - second - third
        self._post((max(first, rest - spare), second, third), held, [(0, own + 10)])
        epoch = (self.model.valid() or [0])[-1] + 1
        challenges, model, evm = self.world.contracts.challenges, self.model, self.world.evm
        call = challenges.demand_epoch(self.c, self._statement(0, 1, epoch))
        self.both(WATCHER, call, lambda: model.demand_epoch(epoch, evm.now))
        evm.travel(wait)
        if saved == 3:
            self._post(self.model.newest(), 0, [])
        self.both(BOSS.address, challenges.halt(self.c), lambda: model.halt(evm.now))
        for seconds in (HELD - early, early):
            evm.travel(seconds)
            self._end()

    def _end(self) -> None:
        """Everybody takes what is theirs."""
        escrow, model, evm = self.world.contracts.escrow, self.model, self.world.evm
        for client in range(2):
            who = CLIENTS[client].address
            self.both(
                who,
                escrow.release_halted(self.c),
                lambda each=client: model.release_halted(each, evm.now),
            )
            self.both(
                who, escrow.take_rest(self.c), lambda each=client: model.take_rest(each, evm.now)
            )
        if model.valid():
            self._claim_all(model.valid()[-1])
