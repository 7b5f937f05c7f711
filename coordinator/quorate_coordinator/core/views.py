"""Builds the API's views from the state. Pure, and changes nothing."""

from collections import Counter
from collections.abc import Iterable

from quorate_coordinator.core.audit import siblings
from quorate_coordinator.core.jobs import orders
from quorate_coordinator.core.matching import offers, work_windows
from quorate_coordinator.core.model import attestation_levels, market_index
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Client, Decided, Job, Matching, Provider, Rented
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.nonces import UsedNonces
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_coordinator.core.money import payees
from quorate_coordinator.core.phase_names import phase_name
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.views import (
    AccountView,
    CaseView,
    ExecutionView,
    HostOwners,
    OfferView,
    PlanRequest,
    PlanView,
    ProviderView,
    RentalView,
    ReputationHead,
    RunView,
    SealedOutput,
    SiblingHosts,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import settlement
from quorate_protocol.rules.reputation import fold, probation, rank
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Label,
    Milliseconds,
    Price,
    UnixSeconds,
)
from quorate_protocol.values import replace

HOSTS_LOOKED_MAX = 256


def run_view(state: State, job: Job, is_client: bool) -> RunView:
    """Names a provider once the CommitSet has published it, and that of a rental at once: its
    client seals secrets for it. Only the client sees the output (I8).
    """
    verdict = job.phase.verdict if isinstance(job.phase, Decided) else None
    published = {digest for batch in job.batches for digest in batch.members}
    published |= set(job.leases) if job.is_rental else set()
    may_see = may_see_results(job, is_client)
    shown = tuple(
        _execution(state, job, state.leases[digest], digest in published, may_see)
        for digest in job.leases
    )
    view = RunView(
        job_id=job.id,
        client=job.order.client,
        name=job.submission.terms.name,
        phase=phase_name(job.phase),
        rule=job.ack.message.rule,
        created_at=job.created_at,
        executions=shown,
        verdict=verdict,
        charged=Amount(0) if job.is_escrowed else job.split.charged,
        budget=job.order.budget,
        receipt_cid=job.receipt_cid if may_see else None,
        is_final=isinstance(job.phase, Decided) and job.phase.is_final,
        output=_output(state, job) if is_client else None,
        rental=_rental(state, job) if is_client else None,
        waits=_waits(state, job) if is_client else "",
    )
    return view if is_client else for_strangers(view)


def _waits(state: State, job: Job) -> str:
    is_matching = isinstance(job.phase, Matching)
    return work_windows.why_waits(state, job.order.client) if is_matching else ""


def for_strangers(view: RunView) -> RunView:
    """For a reader of its evidence, without what only its client may see.

    That is its name, the access to the output and, until the run is final, also its money. A final
    run's receipt shows the money to those that executed it. A run that ends without a verdict is
    never final.
    """
    if view.is_final:
        return replace(view, output=None, rental=None, name="")
    unpaid = tuple(replace(item, pay=None) for item in view.executions)
    return replace(
        view,
        output=None,
        rental=None,
        name="",
        budget=Amount(0),
        charged=Amount(0),
        executions=unpaid,
    )


def may_see_results(job: Job, is_client: bool) -> bool:
    """Other accounts see result digests only when the verdict is final: until then a provider may
    still execute the job as an audit.
    """
    return isinstance(job.phase, Decided) and (is_client or job.phase.is_final)


def _is_rented(lease: Lease) -> bool:
    return isinstance(lease.phase, leases.Live | leases.Returned)


def _rental(state: State, job: Job) -> RentalView | None:
    for digest in reversed(job.leases):
        lease = state.leases[digest]
        if _is_rented(lease):
            started_at = job.phase.started_at if isinstance(job.phase, Rented) else UnixSeconds(0)
            return RentalView(
                provider=lease.provider,
                price_per_hour=lease.assignment.message.price_per_hour,
                usage_ms=_usage(lease) or Milliseconds(0),
                started_at=started_at,
            )
    return None


def _usage(lease: Lease) -> Milliseconds | None:
    match lease.phase:
        case leases.Live(usage_ms=usage_ms) | leases.Returned(usage_ms):
            return usage_ms
        case leases.Committed(commit) | leases.Closed(commit) | leases.Revealed(commit):
            return commit.message.usage_ms
        case leases.Silent(commit):
            return commit.message.usage_ms
        case _:
            return None


def _execution(
    state: State, job: Job, lease: Lease, is_published: bool, may_see: bool
) -> ExecutionView:
    phase = lease.phase
    verdict = job.phase.verdict.message if isinstance(job.phase, Decided) else None
    reveal = phase.reveal if isinstance(phase, leases.Revealed) else None
    role = "unknown"
    if is_published:
        role = "auditor" if lease.is_drawn else "primary"
        if lease.assignment_hash in job.repeats:
            role = "repeat"
    pay = next(
        (
            credit.amount
            for credit in job.split.credits
            if credit.assignment_hash == lease.assignment_hash
        ),
        None,
    )
    return ExecutionView(
        assignment_hash=lease.assignment_hash,
        provider=lease.provider if is_published else Address(bytes(20)),
        role=role,
        batch=lease.batch,
        phase=phase_name(phase),
        usage_ms=_usage(lease),
        exit_status=reveal.exit_status if reveal and may_see else None,
        output_digest=reveal.output_digest if reveal and may_see else None,
        agreed=(lease.assignment_hash in verdict.group)
        if verdict and is_published and role != "repeat"
        else None,
        pay=pay,
    )


def _output(state: State, job: Job) -> SealedOutput | None:
    if not isinstance(job.phase, Decided) or not job.is_readable:
        return None
    wanted = job.phase.verdict.message.group or tuple(
        credit.assignment_hash for credit in job.split.credits
    )
    for digest in wanted:
        phase = state.leases[digest].phase
        if isinstance(phase, leases.Revealed):
            reveal = phase.reveal
            return SealedOutput(
                phase.commit.message.encrypted_output,
                reveal.salt,
                reveal.output_digest,
                reveal.exit_status,
            )
    return None


def offer_views(
    state: State, now: UnixSeconds, limit: int, after: Address | None = None
) -> list[OfferView]:
    """In the order of registration, live or not. With `after`, those that follow this provider."""
    views: list[OfferView] = []
    is_skipping = after in state.providers
    for provider in state.providers.values():
        if is_skipping:
            is_skipping = provider.owner != after
        elif len(views) >= limit:
            break
        elif provider.offer is not None:
            assert provider.offer_signature is not None, "an offer is taken with its signature"
            free = [
                market_index.free_slots(state, provider, slot.pool.id())
                for slot in provider.offer.slots
            ]
            strikes, passed = _record(state, provider, now)
            trusts = state.trust.get(provider.owner) or fold.Trusts()
            levels = tuple(
                attestation_levels.level_of(state, provider, slot, now)
                for slot in provider.offer.slots
            )
            (answered, executions), times = trusts.availability(), trusts.completion()
            views.append(
                OfferView(
                    offer=provider.offer,
                    signature=provider.offer_signature,
                    free_slots=sum(free),
                    strikes=strikes,
                    audits_passed=passed,
                    is_alive=provider.is_alive(now),
                    attestation_levels=levels,
                    executions=executions,
                    answered=answered,
                    quoted_seconds=times.quoted,
                    took_seconds=times.took,
                    network=provider.network,
                    rank_ppm=tuple(rank.rank_ppm(trusts, now, level) for level in levels),
                )
            )
    return views


def _record(state: State, provider: Provider, now: UnixSeconds) -> tuple[int, int]:
    trusts = state.trust.get(provider.owner)
    if trusts is None:
        return 0, 0
    return sum(item.live_strikes(now) for item in trusts.by_class.values()), sum(
        item.passed for item in trusts.by_class.values()
    )


def provider_view(state: State, owner: Address, now: UnixSeconds) -> ProviderView:
    provider = state.providers.get(owner)
    if provider is None:
        raise Refused(Code.UNKNOWN, f"provider 0x{owner.hex()}")
    strikes, passed = _record(state, provider, now)
    payee = payees.of(state, owner)
    return ProviderView(
        owner,
        provider.is_alive(now),
        strikes,
        passed,
        *probation.shown(payee.final, payee.held, provider.is_on_probation),
        payee.vouched,
        fold.view_of(state.trust.get(owner) or fold.Trusts()),
    )


def reputation_head(state: State, rules: Rules) -> ReputationHead:
    log = state.own.log
    return ReputationHead(
        rules.coordinator,
        rules.statement_key,
        rules.domain.chain_id,
        rules.domain.verifying_contract,
        log.count,
        log.root(),
    )


def account_view(state: State, account: Address) -> AccountView:
    client = state.clients.get(account) or Client(account)
    following = (state.nonces.get(account) or UsedNonces()).next()
    return AccountView(
        client=account,
        locked=client.tab.locked,
        paid=client.tab.paid,
        closes_at=client.tab.closes_at,
        reserved=client.reserved,
        charged=client.charged,
        vouched=client.vouched,
        voucher=client.voucher,
        next_nonce=following,
    )


def case_views(state: State) -> list[CaseView]:
    return [
        CaseView(
            execution=case.execution,
            case_id=case.case_id,
            accused=case.accused,
            job_id=case.job_id,
            phase=case.phase,
            jurors=case.jurors,
            convicted=case.is_convicted,
            taken=case.taken,
        )
        for case in state.cases.values()
    ]


def plan_view(
    state: State, rules: Rules, now: UnixSeconds, wanted: PlanRequest, client: Address
) -> PlanView:
    """If an order would be refused, `nearest` says which limit to relax."""
    context = StepContext(state, rules, now, ZERO_HASH)
    spec, price_max = wanted.spec, wanted.max_price_per_hour
    chosen = orders.choose_class(context, wanted, client)
    pool, refusal = chosen.pool, chosen.refusal
    hosts = Counter(slot.host for slot in offers.live_slots(context, pool, HOSTS_LOOKED_MAX))
    priced, worst, owners, found, lowest, auditor = 0, 0, 0, 0, None, 0
    free, lowest_free = 0, None
    bandwidths = [0]
    if chosen.rule is not Label.NONE or refusal is None:
        owners = len(offers.owners_of(context, *chosen.pools))
        found, lowest = offers.offers_for(context, pool, spec, price_max, is_free=False)
        free, lowest_free = offers.offers_for(context, pool, spec, price_max, is_free=True)
        bandwidths = offers.bandwidths(context, pool, spec, price_max, HOSTS_LOOKED_MAX) or [0]
        auditor = min(price_max, offers.median_price(context, pool))
        priced = settlement.executions_priced(chosen.rule)
        one = price_max * spec.paid_seconds() * 1000 // 3_600_000
        worst = one * priced + one * priced * rules.fee_bps // 10_000
    return PlanView(
        pool=pool,
        rule=chosen.rule,
        owners=owners,
        offers=found,
        cheapest=lowest,
        auditor_price=Price(auditor),
        executions_priced=priced,
        worst_charge=Amount(worst),
        fee_bps=rules.fee_bps,
        nearest="" if refusal is None else refusal.detail.removeprefix("order: "),
        refusal="" if refusal is None else refusal.code.value,
        hosts=tuple(HostOwners(str(host), count) for host, count in hosts.most_common()),
        siblings=_siblings(context, pool, spec, hosts),
        bandwidth_least=min(bandwidths),
        bandwidth_most=max(bandwidths),
        free=free,
        cheapest_free=lowest_free,
    )


def _siblings(
    context: StepContext, pool: Hash32, spec: JobSpec, hosts: Iterable[Host]
) -> tuple[SiblingHosts, ...]:
    names = {host.digest(): str(host) for host in hosts}
    agreed = context.state.siblings.get(siblings.key_of(pool, spec)) or ()
    found = [
        SiblingHosts(names[item.one], names[item.other], item.agreed)
        for item in agreed
        if item.one in names and item.other in names
    ]
    return tuple(sorted(found, key=lambda item: (-item.agreed, item.one, item.other)))
