"""The demo's outcome: its facts, the problems among them, and its JSON form."""

from dataclasses import dataclass

from msgspec import to_builtins

from quorate_contracts.generated import escrow, jobs, stakes
from quorate_devnet.demo.accounting import BalanceCheck, total_amount
from quorate_devnet.demo.attested_offers import ShownOffer
from quorate_devnet.demo.evidence import DemoEvidence
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

    `charged` is what the coordinator says that both clients owe; `checked` what they checked.
    `coordinator_restarts` counts how often the coordinator was killed in the middle of runs.
    """

    snapshot: MarketSnapshot
    executor: str
    transport: str
    liar: Address
    result_cid: str
    image_cid: str
    price: str
    gas: dict[str, int]
    balances: tuple[BalanceCheck, ...]
    charged: int
    checked: int
    offers: tuple[ShownOffer, ...]
    seconds: float
    content: ContentReport
    coordinator_restarts: int
    evidence: DemoEvidence

    @property
    def conserved(self) -> bool:
        """Returns whether invariant I1 holds, on chain and between coordinator and clients."""
        return all(item.holds for item in self.balances) and self.charged == self.checked

    def slashed(self) -> dict[Address, int]:
        """Returns the burned stake by account, in token units."""
        return {
            item.account: item.amount
            for item in self.snapshot.history.of(stakes.Burned)
            if isinstance(item, stakes.Burned)
        }

    def settled_on_chain(self) -> int:
        return len(self.snapshot.history.of(jobs.JobPaid))


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
    if set(result.slashed()) != {result.liar}:
        found.append(
            f"{len(result.slashed())} providers were slashed on chain; expected only the liar"
        )
    if not snapshot.is_all_paid():
        found.append("some providers were not paid all they earned")
    if result.settled_on_chain() != 1:
        found.append("the order with an escrow of its own was not paid on chain")
    if not set(snapshot.history.drawn()) & set(snapshot.providers):
        found.append("no owner drew its money")
    if not snapshot.history.of(escrow.Redeemed):
        found.append("no voucher of a client was redeemed")
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
    shown = result.evidence
    if shown.failed or not shown.refusal:
        found.append(f"the receipt is not as it should be: {', '.join(shown.failed)}")
    if shown.here not in ("", shown.true) or shown.false == shown.true:
        found.append("the tile computed here is another one than two owners gave")
    if result.charged != result.checked:
        found.append(f"clients were charged {result.charged}, but {result.checked} was checked")
    return found


def is_accepted(run: RunView) -> bool:
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
            "job": to_hex(case.job_id) if case and case.job_id else None,
            "jurors": [to_hex(juror) for juror in case.jurors] if case else [],
            "convicted": bool(case and case.convicted),
        },
        "slashed": [
            {"provider": to_hex(account), "amount": amount}
            for account, amount in result.slashed().items()
        ],
        "paid": {to_hex(account): amount for account, amount in snapshot.paid().items() if amount},
        "drawn": {
            to_hex(account): amount
            for account, amount in snapshot.history.drawn().items()
            if account in snapshot.providers
        },
        "payroll": {
            "transactions": len(snapshot.history.of(escrow.Payroll)),
            "amount": total_amount(snapshot.history.of(escrow.Payroll)),
        },
        "vouchers": {
            "redeemed": len(snapshot.history.of(escrow.Redeemed)),
            "amount": sum(account.paid for account in snapshot.accounts),
        },
        "settled_on_chain": result.settled_on_chain(),
        "gas": result.gas,
        "coordinator_restarts": result.coordinator_restarts,
        "conserved": result.conserved,
        "evidence": to_builtins(result.evidence),
        "seconds": round(result.seconds, 1),
    }


def to_hex(value: bytes) -> str:
    return "0x" + value.hex()
