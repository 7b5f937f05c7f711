"""One seed's market: a safety phase with every fault, then a liveness phase without any.

In the liveness phase every job and every payment must end.
"""

from functools import partial
from hashlib import sha256

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.entities import Decided, Ended
from quorate_coordinator.core.model.lease import Revealed
from quorate_protocol.messages.receipt import document
from quorate_protocol.rules.receipts.receipt_checks import verify
from quorate_protocol.step import Input
from quorate_protocol.units import Address, Hash32, Outcome
from quorate_runtime.keys.crypto import recover
from sim import aftermath, second_coordinator
from sim.archived_rows import PollAnswer
from sim.chain import OWN, Chain
from sim.checks import Checks
from sim.client import Api, Client
from sim.coordinator import CODEC, FUND, CoordinatorDaemon, new_core, passed_before
from sim.court import JURORS_MAX, JURORS_MIN
from sim.coverage import Coverage
from sim.forgery import forgeries
from sim.network import Network
from sim.offer_gossip import OfferGossip
from sim.parties import DOMAIN, START, is_beacon_signature, key
from sim.plan import LYING, SAFETY_SECONDS, Behaviour, Leaving, Market, Plan, Sleep
from sim.provider import Provider
from sim.schedule import Schedule
from sim.second_coordinator import LONG_SECONDS, SecondCoordinator

# I7: the bound, counted from the moment at which the network works and everybody is honest and
# running. The longest path is an order's expiry (75 s), then seven executions one after the other.
# Each has its draw (10 s), its answer (5 s), its run (at most 12 s) and its reveal (14 s).
END_SECONDS = 75 + 7 * (10 + 5 + 12 + 14)
FETCH_SECONDS = 600  # the longest that a fetch may be quoted
SHARED_SECONDS = 45  # until the last lease of a second coordinator has lapsed
EXIT_SECONDS = 15
REORGANISATION_CHANCE = 0.15  # each second, if the chain's newest blocks can be replaced
REPLAY_EVERY = (
    # The whole journal is replayed at the end of every seed with this remainder; crashes replay
    # anyway.
    4
)
# Then follow vouchers, holds (20 s), redemptions (20 s), payrolls (10 s), open cases (about 100 s),
# closing tabs (90 s).
MONEY_SECONDS = 150
FUNDED_SECONDS = 240  # until the budget of an order goes back that was never executed
SETTLE_SECONDS = 45  # in which owners show and pay a funded order by themselves
FOR_GOOD = 10**6


class World:
    """One market, built from a plan; `run` plays it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule = Schedule(START)
        self.network = Network(self.schedule, plan)
        self.coverage = Coverage()
        self.checks = Checks(self.coverage, plan.limits, plan.pool)
        self.chain = Chain(self.schedule, plan.stream("chain"), plan.limits)
        self.coordinator = CoordinatorDaemon(
            plan, self.schedule, self.network, self.chain, self.checks
        )
        self.providers = [
            Provider(number, plan, self.schedule, self.network, self.chain, self.checks)
            for number in range(len(plan.behaviours))
        ]
        api = Api(
            self.coordinator.take_order,
            self.coordinator.take_session,
            self.coordinator.take_signed,
            self.coordinator.read_logs,
            self.coordinator.take_allowance,
            self._look,
            self.coordinator.give_back,
            self.chain,
        )
        self.clients = [
            Client(number, plan, self.schedule, self.network, api) for number in range(2)
        ]
        self.second = SecondCoordinator(plan, self.schedule, self.network, self.coverage)
        self.gossip = OfferGossip(plan, self.schedule)
        self.gossip.listeners.append(self.coordinator.hear)
        self.coordinator.on_gossip = self.checks.heard_offer
        self.is_calm = self.has_slept = False
        self._wire()

    def _peek(self, lease_hash: Hash32) -> list[Hash32]:
        """Outputs that a provider could copy from reveals of the same job that it can see.

        I8: none of its own batch is among them.
        """
        leases = self.coordinator.leases()
        mine = leases.get(lease_hash)
        if mine is None:
            return []
        found = [
            item
            for item in leases.values()
            if item.job_id == mine.job_id and isinstance(item.phase, Revealed)
        ]
        assert all(item.batch < mine.batch for item in found), (
            "I8: a result was open before all commitments of its batch were in"
        )
        self.coverage.facts["results copied from an earlier batch"] += bool(found)
        return [
            item.phase.reveal.output_digest for item in found if isinstance(item.phase, Revealed)
        ]

    def _look(self, account: bytes, after: int) -> PollAnswer:
        return self.coordinator.look(Address(account), after)

    def _wire(self) -> None:
        self.checks.watch(
            self.coordinator, {provider.name: provider for provider in self.providers}
        )
        for provider in self.providers:
            provider.calls["coordinator"] = self.coordinator.handle
            provider.publish = self.gossip.publish
            if self.plan.has_second_coordinator:
                provider.calls[second_coordinator.NAME] = self.second.handle
                self.second.peers[provider.owner] = (provider.name, provider.handle)
            provider.upload = self.coordinator.put_content
            provider.copier.wiretap = self.coordinator.wiretap
            provider.peek = self._peek
            provider.receipt_of = self.checks.accounts.ledger.receipts.get
            self.coordinator.peers[provider.owner] = (provider.name, provider.handle)
        money = 5_000 if self.plan.is_poor else 50_000_000
        keys = {provider.owner: provider.keys for provider in self.providers}
        slots = [(one.slots[0].pool.id(), int(one.slots[0].count)) for one in self.providers]
        if self.plan.market is Market.LARGE:
            self.checks.conduct.passed.update(
                {provider.owner: passed_before(provider.number) for provider in self.providers}
            )
        if self.plan.has_fund:
            self.chain.had_before(key("stranger", 1).address, FUND)
        clients = [client.account.address for client in self.clients]
        self.chain.register(keys, slots, clients, money, self.plan.capital)
        if self.plan.party:  # nothing fails where somebody means harm
            self.chain.is_moody = self.chain.has_jams = False

    # --------------------------------------------------------------------------------------- phases

    def run(self) -> None:
        """Plays both phases; AssertionError for any violation."""
        self._every_second()
        self.coordinator.boot()
        for provider in self.providers:
            provider.boot()
        for client in self.clients:
            client.start()
        if self.plan.has_second_coordinator:
            self.schedule.after(2, self.second.start)
        self._plan_beacon_outage()
        if self.plan.leaver is not None:
            self.schedule.after(EXIT_SECONDS, self.providers[self.plan.leaver].leave)
        for leaving in self.plan.leavings:
            self.schedule.after(leaving.at, partial(self._leave, leaving))
        for sleep in self.plan.sleeps:
            self.schedule.after(sleep.at, partial(self._sleep, sleep))
        if self.plan.vanishes is not None:
            self.schedule.after(self.plan.vanishes, partial(self.coordinator.sleep, FOR_GOOD))
        for loss in self.plan.gpu_losses:
            self.schedule.after(loss.at, partial(self.providers[loss.provider].lose_gpu, loss))
        for rotation in self.plan.rotations:
            self.schedule.after(rotation.at, self.providers[rotation.provider].rotate)
        self.schedule.run(SAFETY_SECONDS)
        self._calm_down()
        if self.plan.vanishes is not None:
            aftermath.get_everything_out(self)
            return
        seconds = END_SECONDS + self.plan.ahead()
        seconds += max((int(sleep.seconds) for sleep in self.plan.sleeps), default=0)
        seconds += 0 if self.plan.party else FETCH_SECONDS
        seconds += SHARED_SECONDS if self.plan.has_second_coordinator else 0
        seconds += LONG_SECONDS if self.plan.has_busy_jurors else 0
        self._wait(seconds, self._jobs_left, "I7: jobs that never ended")
        seconds = MONEY_SECONDS + (FUNDED_SECONDS if self.clients[0].funded else 0)
        self._wait(seconds, self._money_left, "I7: money that never became final")
        self._final_checks()
        aftermath.play_thieves(self)

    def _leave(self, leaving: Leaving) -> None:
        """A client need not wait for its jobs."""
        client = self.clients[leaving.client]
        known = self.coordinator.core.state.clients.get(client.account.address)
        self.coverage.facts["clients that left"] += 1
        self.coverage.facts["clients that left with jobs under way"] += (
            known is not None and known.under_way > 0
        )
        client.leave(leaving)

    def _sleep(self, sleep: Sleep) -> None:
        self.coverage.facts["daemons that slept for days"] += 1
        for client in self.clients:
            if client.name == sleep.node:
                client.asleep_until = self.schedule.now + round(sleep.seconds)
        for daemon in (self.coordinator, *self.providers):
            if daemon.name == sleep.node:
                daemon.sleep(sleep.seconds)
        for provider in self.providers:
            if provider.name == sleep.node:
                self.chain.close_for_owner(provider.owner)

    def _sleep_at_funded(self) -> None:
        """The coordinator is away while a funded order is settled."""
        kept = any(provider.money.kept for provider in self.providers)
        if self.plan.sleeps_at_funded and kept and not self.has_slept and self.coordinator.is_up:
            self.has_slept = True
            self.coordinator.sleep(SETTLE_SECONDS)

    def _every_second(self) -> None:
        self.chain.mine()
        self._sleep_at_funded()
        if self.plan.has_busy_jurors and self.chain.court.is_drawing():
            self.second.occupy()
        depth = self.plan.limits.chain_depth
        if depth > 1 and self.chain.random.random() < REORGANISATION_CHANCE:
            self.chain.reorganise(self.chain.random.randrange(1, depth))
        self.schedule.after(1, self._every_second)

    def _plan_beacon_outage(self) -> None:
        outage = self.plan.outage
        if outage is not None:
            self.schedule.after(
                outage.start, lambda: setattr(self.coordinator, "is_beacon_silent", True)
            )
            self.schedule.after(
                outage.start + outage.seconds,
                lambda: setattr(self.coordinator, "is_beacon_silent", False),
            )

    def _calm_down(self) -> None:
        self.is_calm = True
        self.network.heal()
        self.gossip.heal()
        self.second.is_calm = True
        self.chain.is_moody = False
        self.coordinator.calm_down()
        for provider in self.providers:
            provider.calm_down()
        for client in self.clients:
            client.is_calm = True
            client.clock.correct()

    def _wait(self, seconds: int, left: "object", what: str) -> None:
        for _ in range(seconds):
            if not left():  # type: ignore[operator]
                return
            self.schedule.run(1)
        remaining = left()  # type: ignore[operator]
        assert not remaining, f"{what} within {seconds} s: {remaining}"

    def _jobs_left(self) -> list[str]:
        if not self.coordinator.is_up:
            return ["the coordinator is down"]
        state = self.coordinator.core.state
        open_jobs = [
            job for job in state.jobs.values() if not isinstance(job.phase, Decided | Ended)
        ]
        left = [f"{job.submission.terms.name} is {job.phase}"[:600] for job in open_jobs]
        return left

    def _money_left(self) -> list[str]:
        state, own = self.coordinator.core.state, self.coordinator.core.state.own
        left = [
            f"0x{item.account.hex()} holds {item.held}, is owed {item.final - item.tab.paid}"
            for item in state.payees.values()
            if item.held or item.tab.paid < item.final
        ]
        left += [f"{item.reserved} reserved" for item in state.clients.values() if item.reserved]
        left += [
            f"charged {item.charged}, vouched {item.vouched}"
            for item in state.clients.values()
            if item.charged > item.vouched
        ]
        tabs = self.chain.escrow.tabs
        left += [
            f"a client's tab is {tabs[account, OWN]}, and {item.tab} here"
            for account, item in state.clients.items()
            if (item.tab.locked, item.tab.paid)
            != (tabs[account, OWN].locked, tabs[account, OWN].paid)
            or tabs[account, OWN].paid < min(item.charged, item.vouched)
        ]
        left += [f"tab {place} closes" for place, tab in tabs.items() if tab.closes_at]
        left += [f"{len(table)} rows" for table in (state.live, state.held) if len(table)]
        left += [
            f"case {case.key} is {case.phase}"
            for case in state.cases.values()
            if case.is_convicted is None
        ]
        left += [
            f"a funded order of {job.budget}"
            for job in self.chain.jobs.jobs.values()
            if not job.is_over
        ]
        left += (
            [f"fees held {own.fee_held}, fund held {own.fund_held}"]
            if own.fee_held or own.fund_held
            else []
        )
        for provider in self.providers:
            left += self._pay_left(provider)
        for leaving in self.plan.leavings:
            client = self.clients[leaving.client]
            if tabs[client.account.address, OWN].locked > client.signed:
                left.append(f"{client.name} waits for its money")
        return left

    def _pay_left(self, provider: Provider) -> list[str]:
        payee = self.coordinator.core.state.payees.get(provider.owner)
        credit = payee.final if payee is not None else 0
        tab = self.chain.escrow.tabs[OWN, provider.owner]
        if not provider.is_up or tab.drawn != credit:
            return [f"{provider.name} is owed {credit}, has drawn {tab.drawn}"]
        debt = provider.core.debt(OWN)
        if max(debt.vouched, debt.tab.paid) != credit:
            return [f"{provider.name} has no voucher over {credit}, but {debt.vouched}"]
        is_liar = provider.planned is not Behaviour.HONEST
        if is_liar or debt.earned <= credit + self._given_back(provider.owner):
            return []
        return [f"{provider.name} waits for {debt.held}"]

    def _given_back(self, owner: Address) -> int:
        """Held pay that an owner lost by a fault of its own, which no receipt says (5.111)."""
        leases = self.coordinator.leases()
        return sum(
            job.split.refund
            for job in self.coordinator.jobs()
            if job.split.refund and leases[job.batches[0].members[0]].provider == owner
        )

    # ----------------------------------------------------------------------------------- at the end

    def _final_checks(self) -> None:
        core = self.coordinator.core
        assert not any(core.state.leases_in_slots.values()), "I2: a run slot is taken by nothing"
        self._check_convictions()
        self.checks.check_end()
        self._check_leavings()
        self._check_funded()
        self.coverage.facts["replaced blocks"] += self.chain.replaced
        for provider in self.providers:
            self.coverage.facts["funded orders that owners settled"] += provider.money.shown > 0
            self.coverage.facts["owners that redeemed"] += provider.money.redeemed > 0
        for job in self.coordinator.jobs():
            is_stored = (
                job.receipt_cid is None
                or f"receipt-doc-{job.receipt_cid}" in self.coordinator.documents
            )
            assert is_stored, f"I6: the receipt of job 0x{job.id.hex()[:8]} was never stored"
        kept = {job.id for job in self.coordinator.jobs()}
        for client in self.clients:
            for job_id in client.acked:
                assert job_id in kept, "I6: an acknowledged order is gone"
            found = core.state.clients.get(client.account.address)
            if found is None:  # it took everything back and had never ordered
                assert not client.acked, "I6: a client is gone"
                continue
            kept_sum = found.voucher.message.cumulative if found.voucher else 0
            # One that took everything back and never ordered was forgotten with its voucher.
            assert not client.acked or kept_sum >= client.taken_voucher, (
                "I6: an acknowledged voucher is gone"
            )
        if self.plan.seed % REPLAY_EVERY == 0:
            self._check_replay(core)
        if self.plan.seed % REPLAY_EVERY == 1 or self.plan.unbacked_chance:
            self._check_forgeries()

    def _check_convictions(self) -> None:
        """I5: convicts only providers that really gave wrong results."""
        planned = {provider.owner: provider.planned for provider in self.providers}
        wrong = {owner for owner, kind in planned.items() if kind in LYING}
        for case in self.chain.court.cases:
            rogues = [juror for juror in case.jurors if planned[juror] is Behaviour.COLLUDER]
            if (
                case.is_convicted
                and len(rogues) >= JURORS_MIN
                and 3 * len(rogues) >= 2 * len(case.jurors)
            ):
                wrong.add(case.accused)  # most of the class agrees on the result (docs/trust)
                self.coverage.facts["convicted by a ring"] += 1
            assert not case.is_convicted or case.accused in wrong, (
                f"I5: {planned[case.accused]} was convicted"
            )
            self.coverage.facts["convicted" if case.is_convicted else "acquitted"] += 1
        for provider in self.providers:
            cases = [case for case in self.chain.court.cases if case.accused == provider.owner]
            burned = sum(case.taken for case in cases) + self.chain.fines.get(provider.owner, 0)
            lost = self.chain.staked[provider.owner] - self.chain.stakes[provider.owner]
            assert lost == burned, f"I5: {provider.name} lost {lost} of stake, not {burned}"
            for case in cases:
                burned_by_accuser = JURORS_MAX * (case.pay + self.plan.limits.jury_gas_fee)
                assert 2 * case.taken <= burned_by_accuser, "I11: a case took more than it cost"
            is_fined = provider.owner in self.chain.fines
            has_signed = provider.planned in (Behaviour.EQUIVOCATOR, Behaviour.COPIER)
            # An intruder may hold a provider's own key.
            assert not is_fined or has_signed or self.plan.has_intruder, (
                f"I5: {provider.name} is fined for two Commits that it never signed"
            )
            self.coverage.facts["fined for two Commits"] += is_fined

    def _check_leavings(self) -> None:
        """I4: a client that leaves gets back everything that it did not sign for."""
        for leaving in self.plan.leavings:
            client = self.clients[leaving.client]
            tab = self.chain.escrow.tabs[client.account.address, OWN]
            assert tab.locked <= client.signed, (
                f"I4: {tab.free} of a client's money stayed, it had signed {client.signed}"
            )

    def _check_funded(self) -> None:
        """I3: the chain pays the owners of a funded order's result, by anybody's showing."""
        for body in self.checks.accounts.ledger.receipts.values():
            verdict = body.verdict.message
            if not body.ack.message.escrowed or verdict.outcome is not Outcome.ACCEPTED:
                continue
            job = self.chain.jobs.jobs[body.order.message.client, body.ack.message.job_id]
            shown = {owner for owner, _, _ in job.shown}
            for item in body.executions:
                owner, lease = item.assignment.message.provider, item.assignment.digest(DOMAIN)
                # What was committed after the first execution was shown may be a copy of it.
                is_late = job.first and self._evidence_since(lease) > job.first
                if lease in verdict.group and not is_late:
                    assert owner in shown, "I3: an accepted execution of a funded order is unpaid"

    def _evidence_since(self, lease: Hash32) -> int:
        kept = (provider.money.kept.get(lease) for provider in self.providers)
        return next((item.since for item in kept if item is not None), 0)

    def _check_forgeries(self) -> None:
        """I2, I9: a coordinator that assigned against order or beacon has no receipt that
        verifies.
        """
        real = list(self.checks.accounts.ledger.receipts.values())
        for body in real[:1] if self.plan.unbacked_chance == 0 else real:
            for wrong, forged in forgeries(
                body, self.checks.accounts.lists[body.ack.message.job_id]
            ):
                report = verify(document(forged), recover, is_beacon_signature)
                assert not report.valid, f"I2: a receipt with {wrong} verifies"
                self.coverage.facts["forged receipts refused"] += 1

    def _check_replay(self, core: CoordinatorCore) -> None:
        """I10: the same journal gives the same state, from the first event on."""
        again = new_core(self.plan)
        for at, random, payload in self.coordinator.disk.records:
            again.step(Input(at, random, CODEC.decode_event(CODEC.version, payload)))
        assert again.snapshot() == core.snapshot(), "I10: a replay gives another state"

    def trace(self) -> Hash32:
        """A hash over every journaled event and effect of every process."""
        whole = sha256()
        for trace in (self.coordinator.trace, *(provider.trace for provider in self.providers)):
            whole.update(trace.digest())
        return Hash32(whole.digest())
