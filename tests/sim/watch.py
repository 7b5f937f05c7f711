"""The watchers of a market: they hold Statements, and challenge what contradicts them.

A provider's watcher runs beside its daemon, so a crash of the daemon does not stop it. It demands
only leaves of epochs that the coordinator did not build: an honest coordinator would have to answer
within a devnet's few seconds, which is less than a crash takes.
"""

from random import Random

from quorate_protocol.refusals import Refused
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import Address
from sim.chain import Chain
from sim.challenges import Posted
from sim.coordinator import CoordinatorDaemon
from sim.coverage import Coverage
from sim.provider import Provider

REVOKE_CHANCE = 0.3  # each second, that the coordinator's owner sees a foreign epoch first


class Watch:
    """All watchers of one market, and the owner of its coordinator."""

    def __init__(
        self,
        chain: Chain,
        coordinator: CoordinatorDaemon,
        providers: list[Provider],
        random: Random,
        coverage: Coverage,
    ) -> None:
        self.chain, self.coordinator, self.providers = chain, coordinator, providers
        self.random, self.coverage = random, coverage
        # account -> epoch -> final credit that the newest Statement for this epoch promised
        self.promised: dict[Address, dict[int, int]] = {}

    def look(self) -> None:
        """Looks once, and does what is due."""
        self._note_statements()
        for posted in [item for item in self.chain.epochs if item.is_foreign]:
            is_read = posted.number <= self.chain.confirmed_epochs()
            if is_read and not posted.is_void and not self.chain.is_final(posted):
                self._contest(posted)
        for number, account in list(self.chain.challenges.now.demands):
            self._try(account, lambda n=number, a=account: self._close(n, a))
        if self.coordinator.is_gone:
            self._halt()

    def due(self, account: Address, number: int) -> int:
        """What Statements for this epoch or an earlier one promised to an account."""
        known = self.promised.get(account, {})
        return max((final for epoch, final in known.items() if epoch <= number), default=0)

    def newest(self) -> tuple[Address, int] | None:
        """(account, epoch) of the Statement that is due in the latest epoch."""
        found = [(max(known), account) for account, known in self.promised.items() if known]
        return (max(found)[1], max(found)[0]) if found else None

    def _note_statements(self) -> None:
        for provider in self.providers:
            if not provider.life:
                continue  # it starts in this second
            signed = provider.core.statements.get(provider.coordinator)
            if signed is not None and signed.message.final:
                known = self.promised.setdefault(provider.owner, {})
                known[signed.message.epoch] = signed.message.final

    def _contest(self, posted: Posted) -> None:
        number = posted.number
        if any(demanded == number for demanded, _ in self.chain.challenges.now.demands):
            return
        is_seen = self.random.random() < REVOKE_CHANCE
        holders = [each.owner for each in self.providers if self.due(each.owner, number)]
        if is_seen or not holders:
            owner = self.coordinator.core.rules.coordinator
            self._try(owner, lambda: self._revoke(number))
            return
        for account in holders:
            due = self.due(account, number)
            self._try(
                account, lambda a=account, d=due: self.chain.challenges.demand_leaf(number, a, d, a)
            )

    def _revoke(self, number: int) -> None:
        self.chain.challenges.revoke(number)
        self.coverage.facts["a thief's epoch was revoked"] += 1

    def _close(self, number: int, account: Address) -> None:
        was_void = self.chain.epochs[number - 1].is_void
        self.chain.challenges.close_demand(number, account)
        self.coverage.facts["a thief's epoch was void by a demand"] += not was_void

    def _halt(self) -> None:
        newest, challenges = self.newest(), self.chain.challenges
        if newest is None or challenges.now.halted_at:
            return
        account, epoch = newest
        if challenges.now.epoch_demand is None:
            if self.chain.newest_valid().number < epoch:
                self._try(account, lambda: challenges.demand_epoch(epoch, account))
        else:
            self._try(account, lambda: challenges.halt(account))

    def _try(self, sender: Address, act) -> None:  # type: ignore[no-untyped-def]
        try:
            self.chain.do(sender.hex(), act)
        except Refused:
            pass  # it is too early, or another was first: it looks again in a second


class Aftermath:
    """What a halted coordinator's last good epoch pays, and what its clients get back."""

    def __init__(self, watch: Watch, coverage: Coverage) -> None:
        self.watch, self.chain, self.coverage = watch, watch.chain, coverage

    def end(self) -> None:
        """I1: everybody takes what is theirs, and only dust stays."""
        chain, challenges = self.chain, self.chain.challenges
        valid = chain.newest_valid()
        assert not valid.number or chain.is_final(valid), "I7: the last good epoch is not final"
        leaves = self.watch.coordinator.published.get(valid.root.hash, ())
        charged = sum(chain.vouched.values())
        held = valid.root.held
        backed = min(held, charged - valid.root.final) if challenges.now.halted_at else 0
        for leaf in leaves:
            if leaf.account != Address(bytes(20)):  # the audit fund's leaf is nobody's
                self._claim(leaf, leaf.held * backed // held if held else 0)
        rest = charged - valid.root.final - backed
        for client, spent in chain.vouched.items() if challenges.now.halted_at else ():
            chain.rests[client] = rest * spent // charged if charged else 0
        if challenges.now.halted_at:
            self._file(leaves)
        for client, amount in chain.allocated.items():
            free = amount - chain.vouched.get(client, 0)
            chain.allocated[client] -= free
            chain.returned[client] = chain.returned.get(client, 0) + free
        chain.check()
        self._check_dust(leaves, charged)

    def _claim(self, leaf: Leaf, of_held: int) -> None:
        before = self.chain.claimed.get(leaf.account, 0)
        assert leaf.final >= before, "I1: a claim below an earlier one"
        self.chain.claimed[leaf.account] = max(before, leaf.final + of_held)

    def _file(self, leaves: tuple[Leaf, ...]) -> None:
        shown = {leaf.account: leaf.final for leaf in leaves}
        owed = {
            account: self.watch.due(account, 1 << 31) - shown.get(account, 0)
            for account in self.watch.promised
        }
        short = {account: amount for account, amount in owed.items() if amount > 0}
        before = dict(self.chain.challenges.now.credits)
        self.chain.challenges.share_pot(short)
        for account, amount in short.items():
            paid = self.chain.challenges.now.credits[account] - before.get(account, 0)
            assert paid == amount, f"I3: {amount} were promised, the bond pays {paid}"
        self.coverage.facts["a halted coordinator's bond paid Statements"] += bool(short)

    def _check_dust(self, leaves: tuple[Leaf, ...], charged: int) -> None:
        """I1: after a halt only the audit fund's credit and rounding stay in the pool."""
        if not self.chain.challenges.now.halted_at:
            return
        fund = sum(leaf.final + leaf.held for leaf in leaves if leaf.account == bytes(20))
        paid = sum(self.chain.claimed.values()) + sum(self.chain.rests.values())
        dust = charged - paid - fund
        assert -len(leaves) <= dust <= len(leaves) + len(self.chain.vouched), (
            f"I1: {dust} of {charged} are nobody's"
        )
        self.coverage.facts["a vanished coordinator was halted"] += 1
