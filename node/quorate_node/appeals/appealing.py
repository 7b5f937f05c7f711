"""`quorate node appeal`: asks a jury about a Verdict that faults this provider.

The coordinator has no reason to advance a case against itself, so the provider does it: each call
takes all steps that are due. Every transaction has a purpose, so none is sent twice.
"""

from dataclasses import dataclass

from msgspec import Struct

from quorate_contracts.appeal_evidence import AppealEvidence
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.court import Case, CaseId, CaseOutcome, Phase
from quorate_contracts.bindings.events import CaseOpened
from quorate_contracts.deploy import Contracts
from quorate_contracts.watch.open_cases import NEXT, due_at
from quorate_node.chain.calls import ask, transact
from quorate_node.ops.withdrawal import Wait
from quorate_protocol.limits import Limits
from quorate_protocol.ports import Beacon
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Round, usd
from quorate_runtime.chain import ChainClient, Sender

SEND_SECONDS = 120.0
STEPS_MAX = 8  # of one call
TRIES = 2  # a case that failed may be opened once more
WON = "the jury found this provider's result: the coordinator's bond pays"
LOST = "the jury did not find this provider's result: the bond paid the jury"
FAILED = "the case failed without an answer of the jury"


class Appealed(Struct, frozen=True):
    """What a command did."""

    case_id: int
    done: tuple[str, ...]
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Appealing:
    """The owner's part in its appeal. `sender` sends under the owner's key."""

    client: ChainClient
    contracts: Contracts
    sender: Sender
    beacon: Beacon

    @property
    def limits(self) -> Limits:
        """Limits of the deployment."""
        return self.contracts.deployment.constants()

    async def step(self, shown: AppealEvidence) -> Appealed:
        """Opens the appeal, or takes the steps of its case that are due. Raises Refused if the
        court hears it no more, or the owner's account lacks the bond.
        """
        done: list[str] = []
        case = CaseId(0)
        for number in range(1, TRIES + 1):
            purpose = f"appeal/{shown.assignment_hash.hex()}/{number}"
            if not await self.sender.known(purpose):
                await self._check(shown)
                bond = shown.bond(self.limits)
                court, token = self.contracts.court.address, self.contracts.token
                await self._send(f"{purpose}/approve", token.approve(court, bond))
                done.append(f"appealed, with a bond of {usd(bond)} USD")
            case = await self._opened(purpose, shown)
            state = await self._advance(case, shown)
            if state.phase is not Phase.DECIDED:
                return Appealed(case, tuple(done), (self._wait(state),))
            done += await self._take_credit(case, state)
            if state.outcome in (CaseOutcome.CONVICTED, CaseOutcome.ACQUITTED):
                break
        return Appealed(case, tuple(done), ())

    async def _check(self, shown: AppealEvidence) -> None:
        bond, until = shown.bond(self.limits), shown.open_until(self.limits)
        if (await self.client.head()).time > until:
            raise Refused(Code.TOO_LATE, f"the court heard this execution until {until}")
        account = self.sender.address
        held = await ask(self.client, self.contracts.token.balance_of(account))
        if held < bond:
            raise Refused(
                Code.BAD_AMOUNT,
                f"the bond is {usd(bond)} USD, and 0x{account.hex()} has {usd(held)}: send the "
                "rest of the token there, then type this again",
            )

    async def _opened(self, purpose: str, shown: AppealEvidence) -> CaseId:
        call = self.contracts.cases.open_appeal(shown.job, shown.run, shown.verdict)
        receipt = await transact(self.sender, purpose, call, SEND_SECONDS)
        for item in receipt.logs:
            event = self.contracts.event(item.address, item.topics, item.data)
            if isinstance(event, CaseOpened):
                return CaseId(event.case_id)
        raise AssertionError("a transaction that opened a case logs it")

    async def _advance(self, case: CaseId, shown: AppealEvidence) -> Case:
        for _ in range(STEPS_MAX):
            state = await ask(self.client, self.contracts.court.case(case))
            now = (await self.client.head()).time
            due = await self._due(case, state, now, shown)
            if due is None:
                break
            try:
                await self._send(*due)
            except Refused as refused:
                # Not re-raised: anyone may take the same step, and the next look decides.
                if refused.detail not in ("phase", "known", "early"):
                    raise
                break
        return await ask(self.client, self.contracts.court.case(case))

    async def _due(
        self, case: CaseId, state: Case, now: int, shown: AppealEvidence
    ) -> tuple[str, Call] | None:
        court, key = self.contracts.court, f"case-{case}"
        match state.phase:
            case Phase.DRAWING:
                return await self._draw(case, state, now)
            case Phase.VOTING if now > state.deadline:
                return f"{key}-advance-{state.deadline}", court.advance(case)
            case Phase.REVEALING if now > state.deadline:
                return f"{key}-decide", court.decide(case, [shown.reveal])
            case Phase.DECIDING:
                return f"{key}-decide", court.decide(case, [shown.reveal])
            case _:
                return None

    async def _draw(self, case: CaseId, state: Case, now: int) -> tuple[str, Call] | None:
        found = await self.beacon.round(state.round)
        if found is None:
            if state.is_redrawn and now > self._round_time(state.round) + (
                self.limits.jury_beacon_missing
            ):
                purpose = f"case-{case}-advance-round-{state.round}"
                return purpose, self.contracts.court.advance(case)
            return None
        proven = await ask(self.client, self.contracts.beacon.randomness(state.round))
        if proven == ZERO_HASH:
            return f"beacon-{state.round}", self.contracts.beacon.submit(found)
        return f"case-{case}-draw-{state.round}", self.contracts.court.draw_jury(case)

    def _round_time(self, number: Round) -> int:
        info = self.contracts.deployment.beacon_info()
        return info.genesis_time + (number - 1) * info.period

    def _wait(self, state: Case) -> Wait:
        at = due_at(self.contracts.deployment, state)
        return Wait(f"{NEXT[state.phase]}; then type this again", at)

    async def _take_credit(self, case: CaseId, state: Case) -> list[str]:
        said = {CaseOutcome.CONVICTED: WON, CaseOutcome.ACQUITTED: LOST}
        done = [said.get(state.outcome, FAILED)]
        account, court = self.sender.address, self.contracts.court
        credit = await ask(self.client, court.credit_of(account))
        if credit:
            await self._send(f"appeal-credit-{case}", court.withdraw(account))
            done.append(f"took {usd(credit)} USD")
        return done

    async def _send(self, purpose: str, call: Call) -> None:
        await transact(self.sender, purpose, call, SEND_SECONDS)
