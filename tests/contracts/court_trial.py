"""Runs a case from its opening to its end, step by step, as its callers do: from events alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.calls import Happened
from contracts.court_world import TRUTH, CourtWorld, Evidence
from contracts.evm import NOBODY
from contracts.executions import result
from contracts.world import Sent, account, sign, typed_hash
from quorate_contracts.abi_codec import encode
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.units import ZERO_HASH, Address, Hash32

JURY_VOTE = "JuryVote(bytes32 caseId,address juror,bytes32 ballot)"
FILING = "(address,address,address,bytes32,uint256,uint256,uint256,uint256,uint256,uint256,"
FILING += "bytes32,bytes32,bytes32,bytes32)"
NONE, DRAWING, VOTING, REVEALING, CLOSED = range(5)
CONVICTED, ACQUITTED, FAILED = 1, 2, 3
RIGHT = result(TRUTH)


def link(juror: Address, ballot: Hash32) -> Hash32:
    """What a ballot adds to the chain."""
    return Hash32(bytes(12) + keccak256(encode(["address", "bytes32"], [juror, ballot]))[12:])


@dataclass
class Trial:
    """One case. Steps return what was sent; `sent` keeps it by step."""

    world: CourtWorld
    evidence: Evidence
    case: Hash32 = ZERO_HASH
    filing: tuple[Any, ...] = ()
    jury: tuple[Address, ...] = ()
    ballots: list[Hash32] = field(default_factory=list)  # links, in order
    voters: list[Address] = field(default_factory=list)  # likewise
    answers: dict[Address, tuple[Hash32, Hash32]] = field(default_factory=dict)  # salt, digest
    sent: dict[str, list[Sent]] = field(default_factory=dict)

    @property
    def state(self) -> Any:
        """phase, moved, floor, voted, revealed, when, tries, chain."""
        return self.world.ask(self.world.court, "case_of", self.evidence.execution)

    @property
    def phase(self) -> int:
        return int(self.state[0])

    @property
    def round(self) -> int:
        """The beacon round that draws next."""
        return int(self.state[5])

    @property
    def jury_hash(self) -> Hash32:
        return keccak256(b"".join(self.jury))

    @property
    def seated(self) -> list[Address]:
        """Those who may still vote."""
        return list(self.jury[self.state[2] :])

    def note(self, step: str, sent: Sent) -> Sent:
        """Keeps what followed from a transaction."""
        self.sent.setdefault(step, []).append(sent)
        for event in sent.events:
            if event.name == "JuryDrawn":
                self.jury = tuple(event.jury)
            elif event.name == "Voted":
                self.ballots.append(link(event.juror, event.ballot))
                self.voters.append(event.juror)
            elif event.name == "Revealed":
                self.answers[event.juror] = event.salt, event.digest
        return sent

    def send(self, step: str, function: str, *arguments: Any, who: str = "boss") -> Sent:
        return self.note(step, self.world.send(who, self.world.court, function, *arguments))

    def open(self, pay: int | None = None, who: str = "accuser") -> Happened:
        """Opens the case with the least pay unless another is named."""
        self.jury, self.ballots, self.voters, self.answers = (), [], [], {}
        least = self.world.limits.jury_pay_min if pay is None else pay
        opened = self.send("open", "open_case", self.evidence.shown, least, who=who).one(
            "CaseOpened"
        )
        self.filing = opened.filing
        self.case = keccak256(encode([FILING], [self.filing]))
        return opened

    def draw_once(self) -> Sent:
        return self.send("draw", "draw", self.filing, b"".join(self.jury))

    def draw(self) -> list[Address]:
        """Proves the round, and draws until the draw is over."""
        self.note("beacon", self.world.prove(self.round))
        while self.phase == DRAWING:
            self.draw_once()
        return self.seated

    def ballot(self, juror: Address, digest: Hash32) -> Hash32:
        kinds = ["bytes32", "address", "bytes32", "bytes32"]
        return keccak256(encode(kinds, [self.evidence.execution, juror, _salt(juror), digest]))

    def signed_vote(self, juror: Address, digest: Hash32, signer: str = "") -> tuple[Any, ...]:
        ballot = self.ballot(juror, digest)
        key = signer or f"{self.world.owners[juror]} operator"
        values = (self.case, juror, ballot)
        signature = sign(key, typed_hash(self.world.domain, JURY_VOTE, values))
        return self.jury.index(juror), ballot, signature

    def vote(self, views: Mapping[Address, Hash32], at_once: bool = False) -> None:
        """Sends votes, one a transaction unless they go at once."""
        votes = [self.signed_vote(juror, digest) for juror, digest in views.items()]
        for part in [votes] if at_once else [[each] for each in votes]:
            self.send("vote", "vote", *self.vote_head, part)

    @property
    def vote_head(self) -> tuple[Any, ...]:
        return self.evidence.execution, self.case, b"".join(self.jury)

    def opened(self, juror: Address, digest: Hash32) -> tuple[Any, ...]:
        return self.voters.index(juror), juror, _salt(juror), digest

    def reveal(self, views: Mapping[Address, Hash32], at_once: bool = False) -> None:
        """Opens ballots, one a transaction unless they go at once."""
        reveals = [self.opened(juror, digest) for juror, digest in views.items()]
        for part in [reveals] if at_once else [[each] for each in reveals]:
            self.send("reveal", "reveal", *self.reveal_head, part)

    @property
    def reveal_head(self) -> tuple[Any, ...]:
        return self.evidence.execution, self.ballots

    @property
    def decide_head(self) -> tuple[Any, ...]:
        shown = [
            (juror, *self.answers[juror]) if juror in self.answers else (NOBODY, ballot, ZERO_HASH)
            for juror, ballot in zip(self.voters, self.ballots, strict=True)
        ]
        return self.filing, self.jury_hash, shown

    def decide(self, openings: list[Any] | None = None) -> Happened:
        """Decides with what opens the evidence, unless told otherwise."""
        shown = self.evidence.openings if openings is None else openings
        return self.send("decide", "decide", *self.decide_head, shown).one("Decided")

    def advance(self) -> Sent:
        return self.send("advance", "advance", *self.vote_head)

    def late(self, seconds: int = 1) -> None:
        """Moves so many seconds past the deadline of the phase."""
        self.world.evm.now = max(self.world.evm.now, self.state[5] + seconds)

    def judged(self, digests: Sequence[Hash32] = (RIGHT,) * 7) -> Happened:
        """Draws, votes, reveals and decides; each juror has one of the digests."""
        views = dict(zip(self.draw(), digests, strict=False))
        self.vote(views)
        self.reveal(views)
        return self.decide()

    def gas(self, step: str) -> list[int]:
        return [sent.gas for sent in self.sent.get(step, [])]


def _salt(juror: Address) -> Hash32:
    return keccak256(b"jury salt" + juror)


def opened_trial(world: CourtWorld, **changes: Any) -> Trial:
    """A case that "accuser" opened against owner0."""
    trial = Trial(world, world.evidence(**changes))
    trial.open()
    return trial


def accounts(count: int) -> list[Address]:
    return [account(f"owner{number}") for number in range(count)]
