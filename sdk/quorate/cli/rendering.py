"""Formats views: dictionaries for --json, tables for people."""

from typing import TYPE_CHECKING, Any

from quorate.cli.terminal_text import one_line
from quorate.client.base.result import Result, describe_exit
from quorate.client.market import Plan
from quorate.job.job import Job
from quorate.job.packing import PackedJob
from quorate.job.pool import PoolRow
from quorate.job.quantities import format_amount, format_duration
from quorate.trust.chain_standing import JudgedOffer
from quorate.trust.offer_verification import CheckedOffer
from quorate_contracts.announced_coordinators import AnnouncedCoordinator
from quorate_protocol.codec import canonical
from quorate_protocol.codec.peer_ids import peer_id
from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.determinism import Profile
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import Offer, SlotOffer, price_per_gpu_hour
from quorate_protocol.messages.order_terms import NAME_DEFAULT
from quorate_protocol.messages.views import JobEvent, OfferView, PlanView
from quorate_protocol.quantity_input import size_text
from quorate_protocol.rules import quotes, settlement
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Amount,
    JobKind,
    Label,
    Milliseconds,
    Price,
    pay_for,
)

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import CheckedSlot
VERIFIERS_WORD = "the verifiers' word; nobody can check it again"
OWNERS_SHOWN = 8
REPORTED = "L0 reported"  # hardware that nobody has measured, as its driver names it


def short(identity: bytes) -> str:
    """Returns the first 12 hex digits of an id, enough to name it."""
    return f"0x{identity.hex()[:12]}"


def rule_name(rule: Label) -> str:
    """Returns a rule's name as documents write it: quorum-2."""
    return rule.name.lower().replace("_", "-")


def profile_json(profile: Profile) -> dict[str, Any]:
    """Returns a determinism profile; `hook` is "" for one without."""
    hook = "" if profile.hook == ZERO_HASH else f"0x{profile.hook.hex()}"
    digest = f"0x{profile.digest().hex()}"
    variables = dict(profile.variables)
    return {"profile": profile.name, "digest": digest, "variables": variables, "hook": hook}


def profile_text(profile: Profile) -> str:
    """Returns what a profile pins: "torch 0x12ab34cd56ef: 14 variables, an import hook"."""
    hook = "" if profile.hook == ZERO_HASH else ", an import hook"
    return f"{profile.name} {short(profile.digest())}: {len(profile.variables)} variables{hook}"


def event_line(event: JobEvent) -> str:
    """Returns one line of `quorate events`."""
    return f"{short(event.job_id)}  {one_line(event.name):<10} {one_line(event.text)}"


def event_json(event: JobEvent) -> dict[str, Any]:
    """Returns an event as JSON, without its commit."""
    return {
        "seq": event.seq,
        "at": event.at,
        "jobId": f"0x{event.job_id.hex()}",
        "name": event.name,
        "text": event.text,
    }


def offer_json(row: CheckedOffer) -> dict[str, Any]:
    checked = {"problem": row.problem, "chainChecked": row.is_chain_checked}
    signer = "" if row.signer is None else f"0x{row.signer.hex()}"
    tree: dict[str, Any] = canonical.to_json(row.view)
    slots = {"slots": [_slot_json(slot) for slot in row.slots]} if row.slots else {}
    return tree | {"check": checked | {"signer": signer} | slots}


def _slot_json(slot: "CheckedSlot") -> dict[str, Any]:
    if not slot.level:
        return {"level": 0, "verified": False}
    return {
        "level": slot.level,
        "verified": slot.is_verified,
        "problem": slot.problem,
        "gpus": len(slot.gpus),
        "verifiers": min((gpu.verifiers for gpu in slot.gpus), default=0),
        "vramBytes": min((gpu.vram_bytes for gpu in slot.gpus), default=0),
        "verifiersWord": {
            "note": VERIFIERS_WORD,
            "elapsedMs": slot.elapsed_ms,
            "int8OperationsPerSecond": min((gpu.int8_operations for gpu in slot.gpus), default=0),
            "memoryBytesPerSecond": min((gpu.memory_bytes for gpu in slot.gpus), default=0),
            "ratioPpm": min((gpu.ratio for gpu in slot.gpus), default=0),
        },
    }


def _level(item: CheckedOffer, number: int) -> str:
    slot = item.view.offer.slots[number]
    if not slot.attestation_level:
        return REPORTED
    level = f"L{slot.attestation_level}"
    if item.slots:
        return _checked(item.slots[number])
    believed = item.view.attestation_levels[number : number + 1]
    is_believed = believed and believed[0] >= slot.attestation_level
    return f"{level} by coordinator" if is_believed else _claimed(slot)


def offer_rows(checked: tuple[CheckedOffer, ...]) -> list[list[str]]:
    rows = []
    for item in checked:
        view, offer = item.view, item.view.offer
        for number, slot in enumerate(offer.slots):
            ranked = view.rank_ppm[number] if number < len(view.rank_ppm) else PPM_ONE
            rows.append(
                [
                    *_offer_cells(offer, slot, _level(item, number), str(view.free_slots)),
                    str(view.audits_passed),
                    str(view.strikes),
                    *_record_cells(view, ranked),
                    "yes" if view.is_alive else "no",
                    _check_text(item),
                ]
            )
    return rows


def _record_cells(view: OfferView, ranked: int) -> list[str]:
    """Returns how often and how fast the provider gave results, and at how much of its price
    matching ranks the slot.
    """
    times = f"{view.took_seconds}/{view.quoted_seconds} s" if view.quoted_seconds else "-"
    revealed = f"{view.answered}/{view.executions}" if view.executions else "-"
    return [revealed, times, f"{ranked / 10_000:.1f} %"]


def gossiped_offer_json(row: JudgedOffer) -> dict[str, Any]:
    envelope = row.heard.envelope
    slots = {"slots": [_slot_json(slot) for slot in row.slots]} if row.slots else {}
    return {
        "offer": canonical.to_json(envelope.offer),
        "signature": f"0x{envelope.signature.sig.hex()}",
        "check": {
            "problem": row.problem,
            "chainChecked": True,
            "signer": f"0x{row.heard.key.hex()}",
        }
        | slots,
    }


def announced_json(one: AnnouncedCoordinator) -> dict[str, Any]:
    return {
        "account": f"0x{one.account.hex()}",
        "peerId": peer_id(one.peer_key),
        "addresses": list(one.addresses),
    }


def gossiped_offer_rows(judged: tuple[JudgedOffer, ...]) -> list[list[str]]:
    """Returns one row for each pool of each offer. What only a coordinator knows is "-"."""
    rows = []
    for item in judged:
        offer = item.heard.envelope.offer
        check = f"BAD: {item.problem}" if item.problem else "ok"
        rows += [
            [*_offer_cells(offer, slot, _gossiped_level(item, number), "-"), *["-"] * 6, check]
            for number, slot in enumerate(offer.slots)
        ]
    return rows


def _gossiped_level(item: JudgedOffer, number: int) -> str:
    slot = item.heard.envelope.offer.slots[number]
    return _checked(item.slots[number]) if item.slots else _claimed(slot)


def _checked(slot: "CheckedSlot") -> str:
    if not slot.level:
        return REPORTED
    return f"L{slot.level} verified" if slot.is_verified else f"L{slot.level} NOT VERIFIED"


def _claimed(slot: SlotOffer) -> str:
    """The level that a slot claims and that nobody has checked here."""
    return f"L{slot.attestation_level} unchecked" if slot.attestation_level else REPORTED


def _offer_cells(offer: Offer, slot: SlotOffer, attested: str, free: str) -> list[str]:
    return [
        short(offer.provider),
        _hardware(slot),
        attested,
        f"{free}/{slot.count}",
        " ".join(_prices(slot)),
        offer.region,
        " ".join(offer.sandboxes),
    ]


RENTAL_COLUMNS = [
    "PROVIDER",
    "HARDWARE",
    "USD/H",
    "TERMS",
    "FREE",
    "CPU",
    "MEMORY",
    "DISK",
    "BYTES/S",
    "REGION",
    "REVEALED",
    "CHECK",
]


def rental_rows(checked: tuple[CheckedOffer, ...]) -> list[list[str]]:
    """Returns one row for each slot that is rented out by the minute."""
    rows = []
    for item in checked:
        offer, view = item.view.offer, item.view
        if not any(kind.is_rental for kind in offer.kinds):
            continue
        for slot in offer.slots:
            rows.append(
                [
                    short(offer.provider),
                    _hardware(slot),
                    _usd(slot.price),
                    _terms(slot),
                    f"{view.free_slots}/{slot.count}",
                    f"{slot.cpu_millis / 1000:g}",
                    size_text(slot.memory_bytes),
                    size_text(slot.scratch_bytes),
                    size_text(offer.bandwidth),
                    offer.region,
                    f"{view.answered}/{view.executions}",
                    _check_text(item),
                ]
            )
    return rows


def _terms(slot: SlotOffer) -> str:
    if slot.has_two_prices:
        return f"on demand, spot {_usd(slot.spot)}"
    return "spot" if slot.is_spot else "on demand"


def _check_text(item: CheckedOffer) -> str:
    """Says what this program found out about an offer. Without the chain it can only name the
    signer.
    """
    if item.problem or item.signer is None:
        return f"BAD: {item.problem}"
    return "ok" if item.is_chain_checked else f"signed by {short(item.signer)}"


def _hardware(slot: SlotOffer) -> str:
    """Describes what one run slot holds: "2 x H100", or the CPU."""
    if not slot.gpu:
        return f"CPU {slot.host}"
    return str(slot.pool)


def _prices(slot: SlotOffer) -> list[str]:
    """Returns the prices per slot-hour; where a slot holds several GPUs, each with the price per
    GPU-hour behind it.
    """
    tiers = (("", slot.on_demand), ("spot ", slot.spot), ("reserved ", slot.reserved))
    return [
        f"{name}{_usd(price)}"
        + (f" ({_usd(price_per_gpu_hour(slot, price))}/GPU)" if slot.pool.gpus > 1 else "")
        for name, price in tiers
        if price
    ]


def _usd(price: Price) -> str:
    return format_amount(price).removesuffix(" USD")


OFFER_COLUMNS = [
    "PROVIDER",
    "HARDWARE",
    "ATTESTED",
    "FREE",
    "USD/SLOT-H",
    "REGION",
    "SANDBOX",
    "AUDITS",
    "STRIKES",
    "REVEALED",
    "TIME/QUOTE",
    "RANKED AT",
    "ALIVE",
    "CHECK",
]


def pool_row(row: PoolRow) -> list[str]:
    price = "" if row.cheapest is None else format_amount(row.cheapest).removesuffix(" USD")
    owners = ", ".join(short(owner) for owner in row.owners[:OWNERS_SHOWN]) + (
        ", ..." if len(row.owners) > OWNERS_SHOWN else ""
    )
    return [row.name, str(len(row.owners)), str(len(row.hosts)), str(row.slots), price, owners]


def pool_json(row: PoolRow) -> dict[str, Any]:
    return {
        "id": f"0x{row.id.hex()}",
        "name": row.name,
        "owners": [f"0x{owner.hex()}" for owner in row.owners],
        "hosts": row.hosts,
        "slots": row.slots,
        "cheapestMicroUsd": row.cheapest,
    }


POOL_COLUMNS = ["POOL", "OWNERS", "CLASSES", "SLOTS", "USD/H", "WHO"]


def spec_json(spec: JobSpec) -> Any:
    return canonical.to_json(spec)


def _priced(view: PlanView, accepts_unwitnessed: bool, executions_max: int) -> str:
    """Describes how many executions the price covers (PROTOCOL §4)."""
    usual, covered = (
        settlement.executions_expected(view.rule),
        settlement.executions_priced(view.rule),
    )
    if view.rule is Label.ADAPTIVE and not accepts_unwitnessed:
        return (
            "you pay 1 execution, plus a full audit if you are offline when it commits (it then "
            f"has no witness); the budget covers {covered}"
        )
    what = f"you pay {usual} execution{'' if usual == 1 else 's'}"
    if view.rule is Label.UNVERIFIED:
        return f"{what}, and nobody checks its result"
    if usual == covered:
        return what
    return f"{what}; if results differ, up to {executions_max} within your budget"


def limits_text(spec: JobSpec) -> str:
    """What ends a program, or drops its output."""
    has = spec.resources
    return (
        f"{has.cpu_millis / 1000:g} cores, {size_text(has.memory_bytes)} memory, "
        f"{size_text(has.output_bytes)} of outputs"
    )


def plan_rows(plan: Plan, accepts_unwitnessed: bool) -> list[list[str]]:
    packed, view, spec = plan.packed, plan.view, plan.packed.spec
    most = plan.job.max_executions if plan.job else EXECUTIONS_MAX
    allowed = spec.fetch_allowance()
    worst = f"{format_amount(plan.worst_charge)}, if it runs for "
    worst += f"{format_duration(spec.max_duration)} at your max_price"
    worst += f", and is fetched for {format_duration(allowed)}" if allowed else ""
    if plan.budget > plan.worst_charge:
        worst += f"; your budget is {format_amount(plan.budget)}"
    final = (
        "at the verdict"
        if view.rule is not Label.ADAPTIVE
        else "after the audit window; provisional until then"
    )
    return [
        [
            "job",
            (
                f"{plan.job.name if plan.job else NAME_DEFAULT} "
                f"({JobKind(spec.kind).name.lower()}), at most "
                f"{format_duration(spec.max_duration)}"
            ),
        ],
        ["limits", limits_text(spec)],
        ["image", spec.image],
        *source_rows(packed),
        ["upload", f"{size_text(plan.upload_bytes)} of {size_text(packed.upload_bytes)}"],
        ["offers that fit", offers_text(view)],
        ["fetch", _fetch(view, spec, plan.job)],
        ["owners in the pool", str(view.owners)],
        ["determinism classes", _hosts(view)],
        ["classes that agreed", _siblings(view)],
        ["rule", f"{rule_name(view.rule)}: {_priced(view, accepts_unwitnessed, most)}"],
        ["fee", f"{view.fee_bps / 100:g} %; you sign no higher fee"],
        ["expected cost", plan.estimate.text() if plan.estimate else "unknown: no offer fits"],
        ["expected time", _time_of(plan)],
        ["worst case", worst],
        ["you pay ahead", plan.lead.text(plan.reserved)],
        ["final", final],
    ]


def offers_text(view: PlanView) -> str:
    """A taken machine may be the cheapest, so it says what the cheapest free one costs."""
    if view.cheapest is None:
        return "none"
    text = f"{view.offers}, cheapest {format_amount(view.cheapest)} an hour"
    if view.free is None:
        return text
    free = f"{text}; {view.free} free now"
    if view.cheapest_free in (None, view.cheapest):
        return free
    return f"{free}, from {format_amount(view.cheapest_free)} an hour"


def source_rows(packed: PackedJob) -> list[list[str]]:
    """What providers fetch themselves."""
    return [
        ["source", f"{item.label}: {size_text(item.size_bytes)}, {item.pinned}; providers fetch it"]
        for item in packed.sources
    ]


def _fetch(view: PlanView, spec: JobSpec, job: Job | None) -> str:
    """How long image and inputs take, and what of it is paid (PROTOCOL 4.17)."""
    size = quotes.fetch_bytes(spec)
    text = size_text(size) if spec.image_bytes else f"at most about {size_text(size)}"
    if view.bandwidth_most:
        spans = (view.bandwidth_most, view.bandwidth_least)
        shown = [format_duration(quotes.fetch_seconds(size, rate)) for rate in spans]
        text += f" in {' to '.join(dict.fromkeys(shown))}"
    allowed = spec.fetch_allowance()
    if not allowed:
        return f"{text}, unpaid"
    most = f"at most {format_duration(allowed)} of it are paid"
    if job is None:
        return f"{text}; {most}"
    pay = pay_for(Milliseconds(allowed * 1000), job.price(), Amount(2**127))
    return f"{text}; {most}, {format_amount(pay)} an execution at your max_price"


def _time_of(plan: Plan) -> str:
    if plan.estimate is None:
        return "unknown: no offer fits"
    return plan.estimate.time_text(plan.view.rule, plan.is_fast, plan.period)


def _hosts(view: PlanView) -> str:
    """Equal bits are expected within one of them; other bits in another are nobody's fault."""
    shown = ", ".join(f"{item.host} ({item.owners})" for item in view.hosts[:8])
    more = f" and {len(view.hosts) - 8} more" if len(view.hosts) > 8 else ""
    return f"{shown}{more}" or "none on offer"


def _siblings(view: PlanView) -> str:
    """The coordinator's word. It decides nothing."""
    shown = [f"{item.one} with {item.other} ({item.agreed})" for item in view.siblings[:8]]
    return ", ".join(shown) or "none yet, with this image and comparator"


def result_json(result: Result) -> dict[str, Any]:
    return {
        "jobId": f"0x{result.job_id.hex()}",
        "exitStatus": int(result.exit_status),
        "output": str(result.output),
        "outputIsEmpty": result.is_empty,
        "outcome": result.verdict.outcome.name.lower(),
        "rule": rule_name(result.rule),
        "providers": [f"0x{provider.hex()}" for provider in result.providers],
        "chargedMicroUsd": int(result.charged),
        "receipt": str(result.receipt),
        "receiptCid": result.receipt_cid,
    }


def result_lines(result: Result) -> list[str]:
    checked = f"{len(result.providers)} providers agree"
    if result.rule is Label.UNVERIFIED:
        checked = "one provider ran it, and nobody checked the result"
    return [
        (
            f"accepted ({rule_name(result.rule)}): {checked}; the program "
            f"{describe_exit(result.exit_status)}"
        ),
        f"output   {result.output}",
        f"receipt  {result.receipt}",
        f"charged  {format_amount(result.charged)}",
    ]
