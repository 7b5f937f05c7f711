"""Random walks that do the same to Stakes, Court and Faults and to a model, at boundary times.

After each step every stake, bond and balance is equal and no token is lost. The model takes stake
in two places only: a jury's verdict, and two signatures.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.court_trial import (
    ACQUITTED,
    CONVICTED,
    FAILED,
    NONE,
    REVEALING,
    RIGHT,
    VOTING,
    Trial,
)
from contracts.court_world import LIE, CourtWorld, peopled_court
from contracts.evm import Reverted
from contracts.executions import result
from contracts.test_faults import K, acks, two_commits
from contracts.world import CLASS, account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET, USD
from quorate_protocol.units import ZERO_HASH, Hash32

OWNERS = 12
SLOT, FEE, AGE, UNBOND = (
    DEVNET.slot_stake,
    DEVNET.jury_gas_fee,
    DEVNET.case_evidence_age,
    DEVNET.unbond_after,
)
COURT = "Court"


class Refusal(Exception):
    """The model refuses, with the contract's reason."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise Refusal(reason)


@dataclass
class Place:
    """A slot: when it was opened, and when it may be unbonded if it closed by itself."""

    owner: str
    block: int
    unbond_at: int = 0


@dataclass
class Model:
    """What the contracts must hold."""

    stakes: Counter[str] = field(default_factory=Counter)
    bond: int = DEVNET.coordinator_bond
    burned: int = 0
    balances: Counter[str] = field(default_factory=Counter)  # in Escrow
    places: dict[int, Place] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    out: dict[str, tuple[int, int]] = field(default_factory=dict)  # block, time
    exited: set[str] = field(default_factory=set)
    faults: dict[str, int] = field(default_factory=dict)
    closed: set[Hash32] = field(default_factory=set)

    def held(self, owner: str) -> int:
        return sum(place.owner == owner for place in self.places.values())

    def open_places(self, owner: str) -> list[Place]:
        out = self.out.get(owner, (0, 0))[0]
        mine = [place for place in self.places.values() if place.owner == owner]
        return [place for place in mine if not place.unbond_at and place.block > out]

    def open_slots(self, owner: str, count: int, block: int) -> None:
        need(owner not in self.exited, "exited")
        for _ in range(count):
            number = self.free.pop() if self.free else len(self.places)
            self.places[number] = Place(owner, block + 1)
        self.stakes[owner] = max(self.stakes[owner], self.held(owner) * SLOT)

    def close_slot(self, owner: str, number: int, now: int) -> None:
        place = self.places.get(number)
        need(place is not None and place.owner == owner, "owner")
        assert place is not None
        need(not place.unbond_at, "phase")
        place.unbond_at = now + UNBOND

    def unbond_slot(self, owner: str, number: int, now: int) -> None:
        place = self.places.get(number)
        need(place is not None and place.owner == owner, "owner")
        assert place is not None
        out, at = self.out.get(owner, (0, 0))
        ready = place.unbond_at or (at + UNBOND if place.block <= out else 0)
        need(bool(ready) and now >= ready, "early")
        del self.places[number]
        self.places |= {number: Place("", 0)}
        self.free.append(number)
        self.stakes[owner] = min(self.stakes[owner], self.held(owner) * SLOT)

    def exit(self, owner: str, now: int, block: int) -> None:
        need(owner not in self.exited, "exited")
        self.exited.add(owner)
        self.close_all(owner, now, block)

    def close_all(self, owner: str, now: int, block: int) -> None:
        if self.open_places(owner):
            self.out[owner] = block + 1, now

    def top_up(self, owner: str, amount: int) -> None:
        need(owner not in self.exited, "exited")
        most = self.held(owner) * SLOT
        need(amount > 0 and self.stakes[owner] + amount <= most, "amount")
        self.stakes[owner] += amount

    def burn(self, owner: str, amount: int, reward: int, now: int, block: int) -> int:
        taken = min(amount, SLOT, self.stakes[owner] if owner != K else self.bond)
        if owner == K:
            self.bond -= taken
        else:
            self.stakes[owner] -= taken
            if 2 * self.stakes[owner] < self.held(owner) * SLOT:
                self.close_all(owner, now, block)
        self.burned += taken - min(reward, taken // 2)
        return taken

    def fault(self, who: str, at: int, pay: int, now: int, block: int) -> None:
        last = self.faults.get(who)
        need(last is None or at > last + AGE, "proven")
        is_again = last is not None and at < last + 90 * DAY
        self.faults[who] = at
        self.burn(who, SLOT if is_again else pay + SLOT // 10, FEE, now, block)

    def verdict(self, answers: dict[str, Hash32], is_opened: bool, pay: int) -> tuple[int, int]:
        """What the answers say of an accused that lied, and what its jurors get."""
        sizes = Counter(answers.values())
        best = max(sizes.values(), default=0)
        paid = 0
        for juror, digest in answers.items():
            if sizes[digest] == best:
                amount = FEE if digest == ZERO_HASH else FEE + pay
                self.balances[juror] += amount
                paid += amount
        self.balances[COURT] -= paid
        if not is_opened or best < 3 or 3 * best < 2 * len(answers):
            return FAILED, paid
        (found,) = [digest for digest, size in sizes.items() if size == best]
        return {RIGHT: CONVICTED, result(LIE): ACQUITTED}.get(found, FAILED), paid


class Walk:
    """One walk from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world: CourtWorld = peopled_court(owners=OWNERS)
        self.model = Model()
        self.owners = [f"owner{number}" for number in range(OWNERS)]
        for number, owner in enumerate(self.owners):
            self.model.places[number] = Place(owner, 1)
            self.model.stakes[owner] = SLOT
            self.model.balances[owner] = 1000 * USD
        self.model.balances["accuser"] = 10_000 * USD
        self.told: Counter[tuple[str, str | int]] = Counter()
        self.old: list[Trial] = []

    def run(self, steps: int) -> None:
        acts = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        for _ in range(steps):
            self.rng.choice(acts)()
            self.world.evm.travel(self.rng.choice([1, 10, AGE, AGE + 1]))
            self.check()

    def both(self, name: str, act: Callable[[], Any], send: Callable[[], Any]) -> bool:
        """Does the same to model and contract, which must agree. Whether it was taken."""
        wanted = got = ""
        try:
            act()
        except Refusal as refusal:
            wanted = str(refusal)
        try:
            send()
        except Reverted as refusal:
            got = str(refusal)
        self.told[name, got] += 1
        assert got == wanted, f"{name}: the contract says {got!r}, the model {wanted!r}"
        return not got

    def stake(self, owner: str, name: str, act: Callable[[], None], *arguments: Any) -> None:
        self.both(name, act, lambda: self.world.send(owner, self.world.stakes, name, *arguments))

    def check(self) -> None:
        world, model = self.world, self.model
        for owner in self.owners:
            assert world.stake(owner) == model.stakes[owner], owner
            assert world.balance(owner) == model.balances[owner], owner
            slots = world.ask(world.stakes, "open_slots_of", account(owner), CLASS)
            assert slots == len(model.open_places(owner)), owner
        assert world.ask(world.stakes, "bond_of", account(K)) == model.bond
        held = sum(model.stakes.values()) + model.bond + model.burned
        assert world.tokens(world.stakes.address) == held, "I1"
        assert world.balance(world.court.address) == model.balances[COURT]
        assert world.tokens(world.escrow.address) == sum(model.balances.values()), "I1"

    def do_open_slots(self) -> None:
        owner, count = self.rng.choice(self.owners), self.rng.choice([1, 2])
        act = lambda: self.model.open_slots(owner, count, self.world.evm.number)  # noqa: E731
        self.stake(owner, "open_slots", act, CLASS, count)

    def do_close_and_unbond(self) -> None:
        number = self.rng.randrange(len(self.model.places) + 1)
        place = self.model.places.get(number, Place("owner0", 0))
        owner = place.owner if place.owner and self.rng.random() < 0.9 else "owner1"
        if self.rng.random() < 0.5:
            now = self.world.now
            act = lambda: self.model.close_slot(owner, number, now)  # noqa: E731
            self.stake(owner, "close_slot", act, CLASS, number)
        self.world.evm.travel(self.rng.choice([0, UNBOND - 1, UNBOND]))
        later = lambda: self.model.unbond_slot(owner, number, self.world.now)  # noqa: E731
        self.stake(owner, "unbond_slot", later, CLASS, number)

    def do_exit(self) -> None:
        owner = self.rng.choice(self.owners[:4])
        act = lambda: self.model.exit(owner, self.world.now, self.world.evm.number)  # noqa: E731
        self.stake(owner, "exit", act)

    def do_top_up(self) -> None:
        owner = self.rng.choice(self.owners)
        missing = self.model.held(owner) * SLOT - self.model.stakes[owner]
        amount = missing + self.rng.choice([0, 0, 1, -1])
        self.stake(owner, "top_up", lambda: self.model.top_up(owner, amount), max(amount, 0))

    def do_fault(self) -> None:
        who, world = self.rng.choice([K, "owner0"]), self.world
        at, now = world.now - self.rng.choice([0, 1, AGE]), world.now
        pair = acks(world, b"%d" % at, at, at) if who == K else two_commits(world, acceptBy=at)
        kind = "two_acks" if who == K else "equivocation"
        pay = 0 if who == K else FEE
        self.both(
            kind,
            lambda: self.model.fault(who, at, pay, now, world.evm.number),
            lambda: world.send("stranger", world.faults, kind, *pair),
        )
        if 2 * self.model.bond < DEVNET.coordinator_bond:  # it orders all that is judged here
            world.fund(K, DEVNET.coordinator_bond)
            world.send(K, world.stakes, "top_up", DEVNET.coordinator_bond - self.model.bond)
            self.model.bond = DEVNET.coordinator_bond

    def do_case(self) -> None:
        """A whole case, new or over the evidence of an earlier one."""
        accused, other = self.rng.sample(self.owners, 2)
        trial = Trial(self.world, self.world.evidence(accused, other))
        if self.old and self.rng.random() < 0.3:
            trial = Trial(self.world, self.rng.choice(self.old).evidence)
        accused = self.world.owners[trial.evidence.shown[8][2]]
        other = self.world.owners[trial.evidence.shown[9][2]]
        pay = self.rng.choice([DEVNET.jury_pay_min, 3 * USD, 40 * USD])
        whole, model = 7 * (pay + FEE), self.model

        def open_case() -> None:
            late = trial.evidence.shown[8][5] + 60 + AGE
            need(self.world.now <= late, "late")
            need(trial.evidence.execution not in model.closed, "named")
            apart = {each for each in self.owners if model.open_places(each)} - {accused, other}
            need(len(apart) >= DEVNET.jury_owners_min, "owners")
            model.balances["accuser"] -= whole
            model.balances[COURT] += whole

        if self.both("open_case", open_case, lambda: trial.open(pay)):
            self.old.append(trial)
            self._judge(trial, accused, pay)

    def _judge(self, trial: Trial, accused: str, pay: int) -> None:
        rng, world = self.rng, self.world
        jury = trial.draw()
        if trial.phase == NONE:
            self.told["no jury", ""] += 1
            return
        main = rng.choice([RIGHT, RIGHT, result(LIE), ZERO_HASH])
        views = {each: rng.choice([main] * 5 + [RIGHT, keccak256(b"other")]) for each in jury}
        trial.vote(dict(list(views.items())[: rng.choice([7, 7, 3])]))
        if trial.phase == VOTING:
            trial.late()
            trial.advance()
            views |= dict.fromkeys(trial.draw(), main)
            trial.vote({each: views[each] for each in trial.seated if trial.phase == VOTING})
        assert trial.phase == REVEALING
        shown = trial.voters[: rng.choice([7, 7, 2])]
        trial.reveal({each: views[each] for each in shown})
        is_opened = rng.random() < 0.8
        trial.late(1 if is_opened else DEVNET.jury_window + 1)
        answers = {world.owners[each]: views[each] for each in shown}
        outcome, paid = self.model.verdict(answers, is_opened, pay)
        now, block = world.now, world.evm.number
        taken = 0
        if outcome == CONVICTED:
            taken = self.model.burn(accused, 7 * (pay + FEE) // 2, 0, now, block)
        if outcome != FAILED:
            self.model.closed.add(trial.evidence.execution)
        decided = trial.decide(None if is_opened else [])
        assert (decided.outcome, decided.paid, decided.taken) == (outcome, paid, taken)
        self.told["outcome", outcome] += 1


@pytest.mark.parametrize("seed", range(4))
def test_contracts_and_model_agree(seed: int) -> None:
    Walk(seed).run(40)


@pytest.mark.slow
def test_contracts_and_model_agree_for_thousands_of_steps() -> None:
    told: Counter[tuple[str, str | int]] = Counter()
    for seed in range(20):
        walk = Walk(1000 + seed)
        walk.run(100)
        told += walk.told
    reasons = {"exited", "owner", "phase", "early", "amount", "late", "named", "proven"}
    assert not reasons - {reason for _, reason in told}, told
    assert {outcome for name, outcome in told if name == "outcome"} == {1, 2, 3}, told
