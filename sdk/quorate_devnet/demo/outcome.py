"""The demo's outcome: its facts, the problems among them, and its JSON form."""

from dataclasses import dataclass

from quorate_contracts.bindings import events
from quorate_devnet.demo.accounting import BalanceCheck, Gas
from quorate_devnet.demo.attested_offers import ShownOffer
from quorate_devnet.demo.market_watch import MarketSnapshot
from quorate_protocol.messages.views import RunView
from quorate_protocol.units import Address, Outcome


@dataclass(frozen=True, slots=True)
class ContentReport:
    """Where the providers' content came from. `kind` is "ipfs", or "gateway" `instead` of it.

    `bytes_by_source` has the verified bytes of all providers by source.
    """

    kind: str
    instead: str
    bytes_by_source: dict[str, int]

    @property
    def elsewhere_bytes(self) -> int:
        """Returns the bytes that came from sources other than the coordinator's store."""
        every = self.bytes_by_source.items()
        return sum(count for source, count in every if not source.startswith("coordinator "))


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """All facts of the demo.

    `charged` and `credited` are the coordinator's sums for I1: what clients paid, and who got it.
    `coordinator_restarts` counts how often the coordinator was killed and started again.
    """

    snapshot: MarketSnapshot
    executor: str
    transport: str
    liar: Address
    result_cid: str
    image_cid: str
    price: str
    gas: Gas
    balances: tuple[BalanceCheck, ...]
    charged: int
    credited: int
    offers: tuple[ShownOffer, ...]
    seconds: float
    content: ContentReport
    coordinator_restarts: int

    @property
    def conserved(self) -> bool:
        """Returns whether invariant I1 holds, on chain and in the coordinator."""
        return all(item.holds for item in self.balances) and self.charged == self.credited

    def slashed(self) -> dict[Address, int]:
        """Returns the slashed stake by account, in token units."""
        return {
            item.account: item.amount
            for item in self.snapshot.history.of(events.Slashed)
            if isinstance(item, events.Slashed)
        }


def problems(result: DemoOutcome) -> list[str]:
    """Returns all that went wrong; empty means the demo succeeded."""
    snapshot, found = result.snapshot, []
    wrong = [run.name for run in snapshot.runs.values() if not is_accepted(run)]
    if wrong:
        found.append(f"without an accepted result: {', '.join(wrong)}")
    believed = [run.name for run, item in snapshot.executions_of(result.liar) if item.agreed]
    if believed:
        found.append(f"the liar's result was accepted in {', '.join(believed)}")
    if not snapshot.lies(result.liar):
        found.append("the liar never ran a job, so no lie was caught")
    honest = [
        run.name
        for run in snapshot.runs.values()
        for item in run.executions
        if item.agreed is False and item.provider != result.liar
    ]
    if honest:
        found.append(f"an honest provider was outvoted in {', '.join(honest)}")
    if snapshot.case is None or not snapshot.case.convicted:
        found.append(
            "the jury did not convict the liar"
            if snapshot.case
            else "no case was opened against the liar"
        )
    elif len({snapshot.runs[job].client for job in snapshot.case.jobs}) < 2:
        found.append("the case names two jobs of one client")
    if set(result.slashed()) != {result.liar}:
        found.append(
            f"{len(result.slashed())} providers were slashed on chain; expected only the liar"
        )
    if not snapshot.is_all_paid():
        found.append("some providers have not claimed all they earned")
    found += [
        f"{item.what}: {item.tokens} against {item.accounted}"
        for item in result.balances
        if not item.holds
    ]
    unverified = [to_hex(offer.provider) for offer in result.offers if not offer.is_verified]
    if unverified:
        found.append(f"the attestation is not verified of {', '.join(unverified)}")
    if not result.content.elsewhere_bytes:
        found.append("image and inputs came from the coordinator, not by CID from elsewhere")
    if not result.coordinator_restarts:
        found.append("the coordinator was not killed while runs were under way")
    if result.charged != result.credited:
        found.append(f"clients were charged {result.charged}, but {result.credited} was credited")
    return found


def is_accepted(run: RunView) -> bool:
    """Returns whether a run ended with an accepted result."""
    return run.verdict is not None and run.verdict.message.outcome is Outcome.ACCEPTED


def to_json(result: DemoOutcome) -> dict[str, object]:
    """Returns the last line of `quorate devnet demo --json`. Addresses and ids are 0x-hex, amounts
    micro-USD.
    """
    snapshot, case = result.snapshot, result.snapshot.case
    executions = [
        {
            "job": to_hex(run.job_id),
            "provider": to_hex(item.provider),
            "role": item.role,
            "agreed": item.agreed,
        }
        for run in snapshot.runs.values()
        for item in run.executions
        if item.agreed is not None
    ]
    return {
        "executor": result.executor,
        "transport": result.transport,
        "offers": [
            {
                "provider": to_hex(offer.provider),
                "level": offer.level,
                "verified": offer.is_verified,
            }
            for offer in result.offers
        ],
        "content": {"from": result.content.kind, "instead_of": result.content.instead},
        "bytes_by_source": result.content.bytes_by_source,
        "job_ids": [to_hex(job_id) for job_id in snapshot.runs],
        "result_cid": result.result_cid,
        "image_cid": result.image_cid,
        "executions": executions,
        "verdict": "accepted"
        if all(is_accepted(run) for run in snapshot.runs.values())
        else "not accepted",
        "strikes": [
            {"provider": to_hex(view.provider), "strikes": view.strikes}
            for view in snapshot.providers.values()
            if view.strikes
        ],
        "case": {
            "jobs": [to_hex(job) for job in case.jobs] if case else [],
            "jurors": [to_hex(juror) for juror in case.jurors] if case else [],
            "convicted": bool(case and case.convicted),
        },
        "slashed": [
            {"provider": to_hex(account), "amount": amount}
            for account, amount in result.slashed().items()
        ],
        "paid": {
            to_hex(account): amount
            for account, amount in snapshot.history.paid().items()
            if account in snapshot.providers
        },
        "gas": {
            "post": result.gas.post,
            "claim": result.gas.claim,
            "case_open": result.gas.case_open,
            "case_decide": result.gas.case_decide,
        },
        "coordinator_restarts": result.coordinator_restarts,
        "conserved": result.conserved,
        "seconds": round(result.seconds, 1),
    }


def to_hex(value: bytes) -> str:
    """Returns 0x-hex."""
    return "0x" + value.hex()
