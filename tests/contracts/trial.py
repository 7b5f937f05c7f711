"""Runs a case from its opening to its end, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.evm import Mined
from contracts.market import ACCUSER, BOSS, Evidence, Key, Market, key
from quorate_contracts.bindings.court import Case, CaseId, jury_vote
from quorate_contracts.bindings.events import Decided, JuryDrawn
from quorate_coordinator.core.effects import Contradiction
from quorate_coordinator.core.effects import Evidence as Shown
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import JuryReveal, JuryVote, Reveal
from quorate_protocol.units import Address, ExitStatus, Hash32, Nonce

TRUE = (b"the right answer of the first", b"of the second", b"of the third")
TRUTH = tuple(result_digest(ExitStatus(0), keccak256(answer)) for answer in TRUE)


@dataclass
class Trial:
    """One open case in a market. Steps return what was mined; `gas` sums the gas by step."""

    market: Market
    evidence: Sequence[Evidence]
    case: CaseId = CaseId(0)
    jurors: tuple[Address, ...] = ()
    gas: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lets an honest provider's answer contradict each execution."""
        self.evidence = [
            each.against(self.market, answer)
            for each, answer in zip(self.evidence, TRUE, strict=False)
        ]

    @classmethod
    def opened(
        cls,
        market: Market,
        accused: Address,
        clients: Sequence[Key] = (key("client0"), key("client1")),
    ) -> "Trial":
        """Opens a case over one execution per client."""
        trial = cls(
            market,
            [market.execution(accused, client, b"lie %d" % i) for i, client in enumerate(clients)],
        )
        trial.open()
        return trial

    @property
    def now(self) -> Case:
        return self.market.evm.ask(self.market.contracts.court.case(self.case))

    def _note(self, step: str, mined: Mined) -> Mined:
        self.gas[step] = self.gas.get(step, 0) + mined.gas
        return mined

    def open(self) -> Mined:
        court, cases = self.market.contracts.court, self.market.contracts.cases
        mined = self._note(
            "open",
            self.market.evm.send(
                ACCUSER.address, cases.open_case([each.shown for each in self.evidence])
            ),
        )
        self.case = CaseId(self.market.evm.ask(court.case_count()))
        return mined

    def draw(self) -> Mined:
        """Proves the beacon round and draws the jury."""
        self.market.prove(self.now.round)
        mined = self._note(
            "draw",
            self.market.evm.send(BOSS.address, self.market.contracts.court.draw_jury(self.case)),
        )
        self.jurors = next(event.jurors for event in mined.events if isinstance(event, JuryDrawn))
        return mined

    def signed_vote(
        self, juror: Address, digests: Sequence[Hash32], signer: Key | None = None
    ) -> Envelope[JuryVote]:
        body = jury_vote(self.case, juror, keccak256(b"jury salt" + juror), digests)
        return seal(self.market.domain, body, (signer or self.market.operators[juror]).sign)

    def vote(
        self, answers: Sequence[Sequence[Hash32]], jurors: Sequence[Address] | None = None
    ) -> Mined:
        """Sends the votes of the jurors in one transaction."""
        voters = self.jurors if jurors is None else jurors
        votes = [
            self.signed_vote(juror, digests) for juror, digests in zip(voters, answers, strict=True)
        ]
        return self._note(
            "vote",
            self.market.evm.send(BOSS.address, self.market.contracts.court.vote(self.case, votes)),
        )

    def opening(self, juror: Address, digests: Sequence[Hash32]) -> JuryReveal:
        return JuryReveal(Nonce(self.case), juror, tuple(digests), keccak256(b"jury salt" + juror))

    def reveal(
        self, answers: Sequence[Sequence[Hash32]], jurors: Sequence[Address] | None = None
    ) -> Mined:
        """Sends the reveals of the jurors in one transaction."""
        voters = self.jurors if jurors is None else jurors
        reveals = [
            self.opening(juror, digests) for juror, digests in zip(voters, answers, strict=True)
        ]
        return self._note(
            "reveal",
            self.market.evm.send(
                BOSS.address, self.market.contracts.court.reveal(self.case, reveals)
            ),
        )

    def decide(self) -> Decided:
        """Decides the case with the providers' reveals."""
        call = self.market.contracts.court.decide(self.case, self.reveals())
        mined = self._note("decide", self.market.evm.send(BOSS.address, call))
        return next(event for event in mined.events if isinstance(event, Decided))

    def reveals(self) -> list[Reveal]:
        """Returns what opens the case's claims."""
        return [reveal for each in self.evidence for reveal in (each.reveal, each.other)]

    def judged(self, answers: Sequence[Sequence[Hash32]]) -> Decided:
        """Draws, votes, reveals and decides, with one answer per juror."""
        self.draw()
        self.vote(answers)
        self.reveal(answers)
        return self.decide()

    def own(self) -> tuple[Hash32, ...]:
        """Returns the digests of the accused: the answer of a juror that agrees with it."""
        return tuple(each.digest for each in self.evidence)


def evidence_of(each: Evidence) -> Shown:
    """Returns an execution as the coordinator keeps it."""
    job, run, other = each.shown.job, each.shown.run, each.shown.contradiction
    against = Contradiction(other.index, other.blind, other.assignment, other.commit, each.other)
    parts = (run.index, run.blind, run.assignment, run.commit, each.reveal)
    return Shown(job.order, job.session, *parts, against)


def money(market: Market) -> None:
    """Asserts I1 on chain: the contracts account for every token."""
    c, evm = market.contracts, market.evm
    accounts = [
        evm.ask(c.stakes.account_at(i + 1))
        for i in range(200)
        if evm.ask(c.stakes.account_at(i + 1)) != bytes(20)
    ]
    stakes = sum(
        evm.ask(c.stakes.stake_of(account)) + evm.ask(c.stakes.bond_of(account))
        for account in accounts
    )
    assert market.balance(c.stakes.address) == stakes, "Stakes holds stakes and bonds"
    pools = [evm.ask(c.escrow.pool(account)) for account in accounts]
    free = sum(evm.ask(c.escrow.free_of(account)) for account in accounts)
    assert market.balance(c.escrow.address) == free + sum(
        pool.allocated - pool.paid for pool in pools
    ), "Escrow: free, allocated, pools"
    cases = [
        evm.ask(c.court.case(CaseId(number + 1))) for number in range(evm.ask(c.court.case_count()))
    ]
    bonds = sum(case.bond for case in cases if case.outcome == 0)
    credits = sum(evm.ask(c.court.credit_of(account)) for account in {*accounts, ACCUSER.address})
    assert market.balance(c.court.address) == bonds + credits + evm.ask(c.court.burned()), (
        "Court: bonds, credits, burned"
    )
