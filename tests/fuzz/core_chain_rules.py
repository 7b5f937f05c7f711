"""What chain, beacon and time can do to the core, for the fuzzing of the core."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fuzz.core_machine import FLAGS, PICK, SPAN, U64, U128, WHO, BaseMachine
from fuzz.core_world import HOSTS
from quorate_coordinator.core import events as ev
from quorate_coordinator.core import views
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    BlockNumber,
    Hash32,
    Nonce,
    Price,
    Round,
    UnixSeconds,
)
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

    @rule(pick=PICK)
    def slashed(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        self.world.notes(
            ev.ChainProviderSlashed(owner.address, Amount(1), BlockNumber(self.world.block))
        )

    @rule(who=WHO, amount=U128)
    def allocation_changes(self, who: int, amount: int) -> None:
        self.world.notes(ev.ChainAllocationChanged(self.world.clients[who].address, Amount(amount)))

    @rule(pick=PICK)
    def case_opens(self, pick: int) -> None:
        owner = self.world.owners[pick % len(self.world.owners)]
        number = len(self.world.cases) + 1
        self.world.cases.append((number, owner.address))
        self.world.notes(
            ev.ChainCaseOpened(Nonce(number), owner.address, (), ()),
            ev.ChainJuryDrawn(Nonce(number), ()),
        )

    @rule(pick=PICK, is_convicted=FLAGS)
    def case_ends(self, pick: int, is_convicted: bool) -> None:
        number = self.world.cases[pick % len(self.world.cases)][0] if self.world.cases else 99
        self.world.notes(ev.ChainCaseDecided(Nonce(number), is_convicted, Amount(1)))

    @rule(pick=PICK, is_posted=FLAGS)
    def transaction_ends(self, pick: int, is_posted: bool) -> None:
        purposes = self.world.purposes or ["epoch-7-7", "case-ff-00"]
        purpose = purposes[pick % len(purposes)]
        if is_posted and purpose.startswith("epoch-"):
            self.world.notes(ev.ChainEpochPosted(int(purpose.split("-")[1]), Hash32(bytes(32))))
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
            views.plan_view(state, rules, at, job.submission.spec, Price(price), is_client)
        views.offer_views(
            state, at, 1 + pick % 8, self.world.owners[pick % len(self.world.owners)].address
        )
        views.case_views(state)
        for owner in self.world.owners:
            views.provider_view(state, owner.address, at)
            views.account_view(state, owner.address)
        for client in self.world.clients:
            views.account_view(state, client.address)
