"""One seed's market: a safety phase with every fault, then a liveness phase without any.

In the liveness phase every job and every payment must end.
"""

from functools import partial
from hashlib import sha256

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.entities import Decided, Ended
from quorate_coordinator.core.lease import Revealed
from quorate_protocol.messages.receipt import document
from quorate_protocol.rules.receipts.receipt_checks import verify
from quorate_protocol.step import Input
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.crypto import recover
from sim import second_coordinator
from sim.archived_rows import PollAnswer
from sim.chain import Chain
from sim.checks import Checks
from sim.client import Api, Client
from sim.coordinator import CODEC, FUND, CoordinatorDaemon, new_core, passed_before
from sim.court import JURORS_MIN
from sim.coverage import Coverage
from sim.forgery import forgeries
from sim.network import Network
from sim.offer_gossip import OfferGossip
from sim.parties import START, is_beacon_signature, key
from sim.plan import LYING, SAFETY_SECONDS, Behaviour, Market, Plan, Release
from sim.provider import Provider
from sim.schedule import Schedule
from sim.second_coordinator import LONG_SECONDS, SecondCoordinator

# I7: the bound, counted from the moment at which the network works and everybody is honest and
# running. The longest path is an order's expiry (75 s), then seven executions one after the other.
# Each has its draw (10 s), its answer (5 s), its run (at most 12 s) and its reveal (14 s).
END_SECONDS = 75 + 7 * (10 + 5 + 12 + 14)
SHARED_SECONDS = 45  # until the last lease of a second coordinator has lapsed
EXIT_SECONDS = 15
REORGANISATION_CHANCE = 0.15  # each second, if the chain's newest blocks can be replaced
REPLAY_EVERY = (
    # The whole journal is replayed at the end of every seed with this remainder; crashes replay
    # anyway.
    4
)
# Then follow vouchers, holds (20 s), an epoch every 10 s, its challenge, claims, open cases (about
# 100 s), releases (60 s).
MONEY_SECONDS = 150


class World:
    """One market, built from a plan; `run` plays it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schedule = Schedule(START)
        self.network = Network(self.schedule, plan)
        self.coverage = Coverage()
        self.checks = Checks(self.coverage, plan.limits, plan.host)
        self.chain = Chain(self.schedule, plan.stream("chain"), plan.limits, plan.host.id())
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
            self._look,
        )
        self.clients = [
            Client(number, plan, self.schedule, self.network, api) for number in range(2)
        ]
        self.second = SecondCoordinator(plan, self.schedule, self.network, self.coverage)
        self.gossip = OfferGossip(plan, self.schedule)
        self.gossip.listeners.append(self.coordinator.hear)
        self.coordinator.on_gossip = self.checks.heard_offer
        self.is_calm = False
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
        self.chain.proof_of = self.coordinator.proof
        self.chain.is_proof_away = lambda: not self.coordinator.is_up
        for provider in self.providers:
            provider.calls["coordinator"] = self.coordinator.handle
            provider.publish = self.gossip.publish
            if self.plan.has_second_coordinator:
                provider.calls[second_coordinator.NAME] = self.second.handle
                self.second.peers[provider.owner] = (provider.name, provider.handle)
            provider.upload = self.coordinator.put_content
            provider.copier.wiretap = self.coordinator.wiretap
            provider.peek = self._peek
            self.coordinator.peers[provider.owner] = (provider.name, provider.handle)
        money = 5_000 if self.plan.is_poor else 50_000_000
        keys = {provider.owner: provider.keys for provider in self.providers}
        slots = [int(sum(slot.count for slot in provider.slots)) for provider in self.providers]
        if self.plan.market is Market.LARGE:
            self.checks.conduct.passed.update(
                {provider.owner: passed_before(provider.number) for provider in self.providers}
            )
            self.chain.allocated[key("stranger", 1).address] = self.chain.vouched[
                key("stranger", 1).address
            ] = FUND
            self.chain.tokens_in += FUND
        self.chain.register(keys, slots, [client.account.address for client in self.clients], money)

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
        for release in self.plan.releases:
            self.schedule.after(release.at, partial(self._release, release))
        for loss in self.plan.gpu_losses:
            self.schedule.after(loss.at, partial(self.providers[loss.provider].lose_gpu, loss))
        for rotation in self.plan.rotations:
            self.schedule.after(rotation.at, self.providers[rotation.provider].rotate)
        self.schedule.run(SAFETY_SECONDS)
        self._calm_down()
        seconds = END_SECONDS + self.plan.ahead()
        seconds += SHARED_SECONDS if self.plan.has_second_coordinator else 0
        seconds += LONG_SECONDS if self.plan.has_busy_jurors else 0
        self._wait(seconds, self._jobs_left, "I7: jobs that never ended")
        self._wait(MONEY_SECONDS, self._money_left, "I7: money that never became final")
        self._final_checks()

    def _release(self, release: Release) -> None:
        """A release need not wait for its client's jobs."""
        client = self.clients[release.client]
        known = self.coordinator.core.state.clients.get(client.account.address)
        self.coverage.facts["releases with jobs under way"] += (
            known is not None and known.under_way > 0
        )
        client.release(self.chain, release)

    def _every_second(self) -> None:
        self.chain.mine()
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
            f"0x{item.owner.hex()} holds {item.held}"
            for item in state.providers.values()
            if item.held
        ]
        left += [f"{item.reserved} reserved" for item in state.clients.values() if item.reserved]
        left += [
            f"charged {item.charged}, vouched {item.vouched}"
            for item in state.clients.values()
            if item.charged > item.vouched
        ]
        left += [
            f"client 0x{account.hex()} has not got its release" for account in self.chain.releases
        ]
        left += [
            (
                f"client 0x{account.hex()} may order for {item.allocation}, the chain says "
                f"{self.chain.orderable(account)}"
            )
            for account, item in state.clients.items()
            if item.allocation != self.chain.orderable(account)
            or item.escrowed != self.chain.allocated[account]
        ]
        left += [f"{len(table)} rows" for table in (state.live, state.held) if len(table)]
        left += (
            ["an epoch is due"]
            if own.is_dirty or (own.epoch and not state.epochs[own.epoch].is_posted)
            else []
        )
        left += [
            f"case {case.key} is {case.phase}"
            for case in state.cases.values()
            if case.is_convicted is None
        ]
        left += (
            [f"fees held {own.fee_held}, fund held {own.fund_held}"]
            if own.fee_held or own.fund_held
            else []
        )
        for provider in self.providers:
            credit = state.providers[provider.owner].final
            if not provider.is_up or self.chain.claimed.get(provider.owner, 0) != credit:
                left.append(
                    f"{provider.name} is owed {credit}, has claimed "
                    f"{self.chain.claimed.get(provider.owner, 0)}"
                )
            elif self._shown(provider) != credit:
                left.append(
                    f"{provider.name} has no statement over {credit}, which the network may "
                    "still be bringing"
                )
        return left

    def _shown(self, provider: Provider) -> int:
        found = provider.core.statements.get(self.coordinator.core.rules.coordinator)
        return found.message.final if found else 0

    # ----------------------------------------------------------------------------------- at the end

    def _final_checks(self) -> None:
        core = self.coordinator.core
        assert not any(core.state.leases_in_slots.values()), "I2: a run slot is taken by nothing"
        self._check_statements(core)
        self._check_convictions()
        self.checks.check_end()
        self._check_releases()
        self.coverage.facts["replaced blocks"] += self.chain.replaced
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
                assert not client.acked and client.account.address in self.chain.returned, (
                    "I6: a client is gone"
                )
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

    def _check_statements(self, core: CoordinatorCore) -> None:
        """I3: the last statement equals the ledger, and every provider has it."""
        for provider in self.providers:
            credit = core.state.providers[provider.owner].final
            assert self._shown(provider) == credit, (
                f"I3: {provider.name} has no statement over {credit}"
            )

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
        convicted = {case.accused for case in self.chain.court.cases if case.is_convicted}
        for provider in self.providers:
            full = self.plan.limits.slot_stake * sum(slot.count for slot in provider.slots)
            lost = full - self.chain.stakes[provider.owner]
            assert not lost or provider.owner in wrong & convicted, (
                f"I5: {provider.name} lost {lost} of stake without a jury's verdict"
            )

    def _check_releases(self) -> None:
        """I4: a client gets back everything that it did not spend.

        A client that took back everything has left what its vouchers say, and no more. One that
        left without paying has allocated again what it had signed.
        """
        for release in self.plan.releases:
            client = self.clients[release.client]
            account, has_eloped = client.account.address, release.hands_in is not None
            self.coverage.facts["releases"] += 1
            kept, spent = self.chain.allocated[account], self.chain.vouched.get(account, 0)
            is_paid = kept == spent or (has_eloped and spent <= kept <= client.signed)
            assert release.share < 1 or is_paid, (
                f"I4: {kept} of a client's deposit stayed, it had spent {spent}"
            )

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
