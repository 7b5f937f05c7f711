"""What the demo ended with: the facts, what of them would be a failure, and their JSON form."""

from dataclasses import dataclass

from quorate_contracts.bindings import events
from quorate_devnet.demo.accounting import Gas, Sum
from quorate_devnet.demo.market_watch import Sight
from quorate_protocol.messages.views import RunView
from quorate_protocol.units import Address, Outcome


@dataclass(frozen=True, slots=True)
class Ending:
    """All facts. `charged` and `credited` are the coordinator's side of I1: what clients were
    charged, and where it went.
    """

    sight: Sight
    executor: str
    liar: Address
    result_cid: str
    image_cid: str
    price: str
    gas: Gas
    sums: tuple[Sum, ...]
    charged: int
    credited: int
    seconds: float

    @property
    def conserved(self) -> bool:
        """I1, on chain and off."""
        return all(item.holds for item in self.sums) and self.charged == self.credited

    def slashed(self) -> dict[Address, int]:
        """Stake that was taken, in token units."""
        return {
            item.account: item.amount
            for item in self.sight.books.of(events.Slashed)
            if isinstance(item, events.Slashed)
        }


def problems(ending: Ending) -> list[str]:
    """Everything that should have been otherwise; empty = the demo succeeded."""
    sight, found = ending.sight, []
    wrong = [run.name for run in sight.runs.values() if not is_accepted(run)]
    if wrong:
        found.append(f"without an accepted result: {', '.join(wrong)}")
    believed = [run.name for run, item in sight.executions_of(ending.liar) if item.agreed]
    if believed:
        found.append(f"the liar was believed in {', '.join(believed)}")
    if not sight.lies(ending.liar):
        found.append("the liar was never asked, so nothing was caught")
    honest = [
        run.name
        for run in sight.runs.values()
        for item in run.executions
        if item.agreed is False and item.provider != ending.liar
    ]
    if honest:
        found.append(f"an honest provider was outvoted in {', '.join(honest)}")
    if sight.case is None or not sight.case.convicted:
        found.append(
            "the jury did not convict the liar"
            if sight.case
            else "no case was opened against the liar"
        )
    elif len({sight.runs[job].client for job in sight.case.jobs}) < 2:
        found.append("the case names two jobs of one client")
    if set(ending.slashed()) != {ending.liar}:
        found.append(
            f"slashed on chain: {len(ending.slashed())} providers, and it should be the liar alone"
        )
    if not sight.is_all_paid():
        found.append("not everybody has claimed what they earned")
    found += [
        f"{item.what}: {item.tokens} against {item.accounted}"
        for item in ending.sums
        if not item.holds
    ]
    if ending.charged != ending.credited:
        found.append(f"clients were charged {ending.charged}, but {ending.credited} went somewhere")
    return found


def is_accepted(run: RunView) -> bool:
    """Whether a run ended with an accepted result."""
    return run.verdict is not None and run.verdict.message.outcome is Outcome.ACCEPTED


def to_json(ending: Ending) -> dict[str, object]:
    """The last line of `quorate devnet demo --json`. Addresses and ids as 0x-hex, amounts in
    micro-USD.
    """
    sight, case = ending.sight, ending.sight.case
    executions = [
        {
            "job": hexed(run.job_id),
            "provider": hexed(item.provider),
            "role": item.role,
            "agreed": item.agreed,
        }
        for run in sight.runs.values()
        for item in run.executions
        if item.agreed is not None
    ]
    return {
        "executor": ending.executor,
        "transport": "websocket",
        "job_ids": [hexed(job_id) for job_id in sight.runs],
        "result_cid": ending.result_cid,
        "image_cid": ending.image_cid,
        "executions": executions,
        "verdict": "accepted"
        if all(is_accepted(run) for run in sight.runs.values())
        else "not accepted",
        "strikes": [
            {"provider": hexed(view.provider), "strikes": view.strikes}
            for view in sight.providers.values()
            if view.strikes
        ],
        "case": {
            "jobs": [hexed(job) for job in case.jobs] if case else [],
            "jurors": [hexed(juror) for juror in case.jurors] if case else [],
            "convicted": bool(case and case.convicted),
        },
        "slashed": [
            {"provider": hexed(account), "amount": amount}
            for account, amount in ending.slashed().items()
        ],
        "paid": {
            hexed(account): amount
            for account, amount in sight.books.paid().items()
            if account in sight.providers
        },
        "gas": {
            "post": ending.gas.post,
            "claim": ending.gas.claim,
            "case_open": ending.gas.case_open,
            "case_decide": ending.gas.case_decide,
        },
        "conserved": ending.conserved,
        "seconds": round(ending.seconds, 1),
    }


def hexed(value: bytes) -> str:
    """0x-hex."""
    return "0x" + value.hex()
