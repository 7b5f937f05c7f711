"""What chain, beacon and time can do to the core, for the fuzzing of the core."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fuzz.core_machine import FLAGS, PICK, SPAN, U64, U128, WHO, BaseMachine
from fuzz.core_world import HOSTS, US
from quorate_coordinator.core import views
from quorate_coordinator.core.model import events as ev
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.views import PlanRequest
from quorate_protocol.units import ZERO_HASH, Amount, BlockNumber, Price, Round, UnixSeconds
from quorate_runtime.keys.crypto import KeySigner


class ChainRules(BaseMachine):
    """Blocks, rounds, reorganisations, restarts and reads."""

    @rule(seconds=SPAN)
    def time_passes(self, seconds: int) -> None:
        self.world.beat(seconds)

    @rule(salt=PICK)
    def rounds_appear(self, salt: int) -> None:
        self.world.rounds(salt)

    @rule(number=U64)
    def a_round_nobody_waits_for(self, number: int) -> None:
        self.world.send(ev.RoundAppeared(Round(number), b"", b"\x01" * 32))

    @rule(pick=PICK)
    def key_rotates(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        owner.old_keys.append(owner.key)
        owner.key = KeySigner(bytes([1 + pick % 200, 1 + len(owner.old_keys) % 200]) * 16)
        rotated = ev.ChainKeyRotated(owner.address, owner.key.address, UnixSeconds(self.world.at))
        self.world.notes(rotated, ev.ChainPayoutChanged(owner.address, owner.key.address))

    @rule(pick=PICK, host=st.integers(0, 2), later=st.sampled_from([0, 1, 100]))
    def slot_closes(self, pick: int, host: int, later: int) -> None:
        index = pick % len(self.world.owners)
        self.world.notes(
            ev.ChainSlotClosed(HOSTS[host].id(), index, BlockNumber(self.world.block + later))
        )

    @rule(pick=PICK, host=st.integers(0, 2), more=st.integers(0, 2))
    def slot_opens(self, pick: int, host: int, more: int) -> None:
        index = pick % len(self.world.owners)
        self.world.notes(
            ev.ChainSlotOpened(
                HOSTS[host].id(),
                index + more,
                self.world.owners[index].address,
                BlockNumber(self.world.block),
            )
        )

    @rule(pick=PICK, host=st.integers(0, 2))
    def slots_end(self, pick: int, host: int) -> None:
        index = pick % len(self.world.owners)
        owner = self.world.owners[index].address
        self.world.notes(
            ev.ChainNetworkChanged(owner, ZERO_HASH),
            ev.ChainSlotsClosed(owner, BlockNumber(self.world.block)),
            ev.ChainSlotFreed(HOSTS[host].id(), index),
        )

    @rule(who=WHO, locked=U128, paid=U128, is_closing=FLAGS)
    def a_clients_tab_changes(self, who: int, locked: int, paid: int, is_closing: bool) -> None:
        client = self.world.clients[who].address
        self.world.notes(self.world.tab(client, US, locked, paid, is_closing))

    @rule(pick=PICK, locked=U128, paid=U128, is_closing=FLAGS)
    def an_owners_tab_changes(self, pick: int, locked: int, paid: int, is_closing: bool) -> None:
        owner = self.world.owners[pick % len(self.world.owners)].address
        self.world.notes(self.world.tab(US, owner, locked, paid, is_closing))

    @rule(balance=U128, payroll=U128, locks=U128)
    def balance_and_limits_change(self, balance: int, payroll: int, locks: int) -> None:
        self.world.notes(ev.ChainBalanceChanged(Amount(balance), Amount(payroll), Amount(locks)))

    @rule(pick=PICK)
    def case_opens(self, pick: int) -> None:
        known = list(self.world.core.state.leases.values())
        lease = known[pick % len(known)] if known else None
        execution = lease.assignment_hash if lease else ZERO_HASH
        accused = lease.provider if lease else self.world.owners[0].address
        other = known[pick // 7 % len(known)].assignment_hash if known else ZERO_HASH
        self.world.cases.append(execution)
        self.world.notes(
            ev.ChainCaseOpened(execution, other, accused, keccak256(bytes([pick % 256]))),
            ev.ChainJuryDrawn(execution, ()),
        )

    @rule(pick=PICK, is_convicted=FLAGS)
    def case_ends(self, pick: int, is_convicted: bool) -> None:
        cases = self.world.cases or [ZERO_HASH]
        ended = ev.ChainCaseDecided(cases[pick % len(cases)], is_convicted, Amount(1))
        self.world.notes(ended)

    @rule(pick=PICK, is_confirmed=FLAGS)
    def transaction_ends(self, pick: int, is_confirmed: bool) -> None:
        purposes = self.world.purposes or ["payroll-7-7", "case-ff-00"]
        purpose = purposes[pick % len(purposes)]
        if is_confirmed:
            self.world.send(ev.TransactionConfirmed(purpose, ()))
        else:
            self.world.send(ev.TransactionRefused(purpose, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 500))

    @rule(back=st.integers(0, 70))
    def reorganised(self, back: int) -> None:
        self.world.send(ev.ChainReorganised(BlockNumber(max(0, self.world.block - back))))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(is_client=FLAGS, price=U128, pick=PICK)
    def look(self, is_client: bool, price: int, pick: int) -> None:
        """Every view there is."""
        state, rules, at = self.world.core.state, self.world.core.rules, UnixSeconds(self.world.at)
        for job in self.world.jobs()[-4:]:
            views.run_view(state, job, is_client)
            order, spec = job.submission.order.message, job.submission.spec
            wanted = PlanRequest(spec, Price(price), order.verify_tier, is_client)
            views.plan_view(state, rules, at, wanted, order.client)
        views.offer_views(
            state, at, 1 + pick % 8, self.world.owners[pick % len(self.world.owners)].address
        )
        views.case_views(state)
        for owner in self.world.owners:
            views.provider_view(state, owner.address, at)
            views.account_view(state, owner.address)
        for client in self.world.clients:
            views.account_view(state, client.address)
