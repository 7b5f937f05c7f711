"""The simulated chain: stakes, allocations, vouchers, epochs, claims and cases. One block a second.

It keeps its own sums (I1 on chain) and checks what the contracts check. If a post of an honest
coordinator breaks one of those checks, that is a violation and not a refusal.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from random import Random

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import OpenCase, PostEpoch
from quorate_node.core import effects as node_effects
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import JuryReveal, JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, root_of
from quorate_protocol.units import ZERO_HASH, Address, Amount, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.keys.crypto import recover
from sim.blocks import Blocks
from sim.court import Court
from sim.operator_keys import OperatorKeys
from sim.parties import DOMAIN, key
from sim.process import Again, Finish
from sim.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Posted:
    """An epoch on chain."""

    number: int
    root: Node
    at: UnixSeconds


NO_EPOCH = Posted(0, Node(ZERO_HASH, Amount(0), Amount(0)), UnixSeconds(0))


class Chain(Blocks):
    """The ledger and its clock."""

    BALANCES = (
        "allocated",
        "vouched",
        "releases",
        "returned",
        "overtaking",
        "stakes",
        "claimed",
        "epochs",
        "left",
        "burned",
        "tokens_in",
    )

    def __init__(self, schedule: Schedule, random: Random, limits: Limits, host: Hash32) -> None:
        super().__init__(schedule, random, limits)
        self.host = host  # the id of the class of all stake slots
        self.allocated: dict[Address, int] = {}
        self.vouched: dict[Address, int] = {}
        self.releases: dict[
            Address, tuple[int, int]
        ] = {}  # announced releases: amount, and when each may be finished
        self.returned: dict[Address, int] = {}
        self.overtaking = 0  # finished releases that have not made an epoch fail yet
        self.stakes: dict[Address, int] = {}
        self.claimed: dict[Address, int] = {}
        self.epochs: list[Posted] = []
        self.left: set[Address] = set()
        self.keys: dict[Address, OperatorKeys] = {}  # operator keys of every owner
        self._places: dict[Address, list[int]] = {}
        self.burned = 0
        self.tokens_in = 0
        self.specs: dict[Hash32, JobSpec] = {}  # the public content store, as far as juries need it
        self.is_proof_away: Callable[[], bool] = lambda: False  # whether nobody serves proofs
        self.proof_of: Callable[[int, Address], tuple[Leaf, Proof] | None] = (
            lambda number, account: None
        )
        self.court = Court(self)
        self._credits: dict[tuple[int, Address], Amount] = {}

    # -------------------------------------------------------------------------------------- genesis

    def register(
        self,
        keys: dict[Address, OperatorKeys],
        slots: list[int],
        clients: list[Address],
        money: int,
    ) -> None:
        """Registers everybody who takes part from the beginning."""
        notes = self.blocks[0].notes
        notes.append(ev.ChainAccountIndexed(key("coordinator").address, 1))
        place, self.keys = 0, keys
        for number, ((owner, ring), count) in enumerate(zip(keys.items(), slots, strict=True)):
            network = hash_tuple("network", number)
            notes.append(
                ev.ChainProviderRegistered(owner, number + 2, ring.current.address, owner, network)
            )
            for _ in range(count):
                notes.append(ev.ChainSlotOpened(self.host, place, owner, BlockNumber(0)))
                self._places.setdefault(owner, []).append(place)
                place += 1
            self.stakes[owner] = count * self.limits.slot_stake
            self.tokens_in += self.stakes[owner]
        for client in clients:
            notes.append(ev.ChainAllocationChanged(client, Amount(money)))
            self.allocated[client] = money
            self.tokens_in += money

    def leave(self, owner: Address) -> None:
        """Stakes.exit: the slots are not drawn any more; the stake stays liable until it has
        unbonded.
        """

        def act() -> None:
            closed = BlockNumber(self.height + 1)
            self.left.add(owner)
            self.note(*(ev.ChainSlotClosed(self.host, at, closed) for at in self._places[owner]))

        self.do(owner.hex(), act)

    def request_release(self, client: Address, amount: int) -> None:
        """Escrow.request_release: nothing more may be ordered for the amount.

        Vouchers can still claim it until the release is finished.
        """

        def act() -> None:
            self.releases[client] = amount, self.now + self.limits.allocation_release
            self._tell_allocation(client)

        self.do(client.hex(), act)

    def finish_release(self, client: Address) -> None:
        """Escrow.finish_release: the client gets what vouchers left of the amount. Refused if it is
        too early.
        """

        def act() -> None:
            amount, ready = self.releases.get(client, (0, UnixSeconds(2**63)))
            if self.now < ready:
                raise Refused(Code.CHAIN, "early")
            del self.releases[client]
            freed = min(amount, self.allocated[client] - self.vouched.get(client, 0))
            self.allocated[client] -= freed
            self.returned[client] = self.returned.get(client, 0) + freed
            self.overtaking += 1
            self._tell_allocation(client)

        self.do(client.hex(), act, insists=True)

    def allocate(self, client: Address, amount: int) -> None:
        """Escrow.allocate, from money that came back."""

        def act() -> None:
            assert amount <= self.returned[client], "nobody has more than it took back"
            self.returned[client] -= amount
            self.allocated[client] += amount
            self._tell_allocation(client)

        self.do(client.hex(), act, may_wait=False)  # else it would allocate twice

    def orderable(self, client: Address) -> int:
        """What a client may still order for: its allocation less announced releases."""
        return max(0, self.allocated[client] - self.releases.get(client, (0, 0))[0])

    def _tell_allocation(self, client: Address) -> None:
        self.note(self._allocation(client))

    def _allocation(self, client: Address) -> ev.ChainAllocationChanged:
        ready, posted = (
            UnixSeconds(self.releases.get(client, (0, 0))[1]),
            Amount(self.vouched.get(client, 0)),
        )
        return ev.ChainAllocationChanged(
            client, Amount(self.orderable(client)), Amount(self.allocated[client]), ready, posted
        )

    def asked(self) -> ev.ChainStateQueried:
        """The client's balance as the chain has it now, including blocks that the coordinator has
        not read.
        """
        newest = self.epochs[-1] if self.epochs else None
        posted = (
            ev.ChainNewestEpoch(newest.number, newest.root.hash)
            if newest
            else ev.ChainNewestEpoch(0, Hash32(bytes(32)))
        )
        return ev.ChainStateQueried(
            (*(self._allocation(client) for client in self.allocated), posted)
        )

    def rotate(self, owner: Address) -> None:
        """Stakes.rotate_key: the old key stays valid for everything up to this second."""
        self.keys[owner].rotate(since := self.now)
        rotated = ev.ChainKeyRotated(owner, self.keys[owner].current.address, since)
        self.do(owner.hex(), lambda: self.note(rotated), may_wait=False)

    # --------------------------------------------------------------------------------- transactions

    def post(self, effect: PostEpoch, finish: Finish) -> None:
        """Epochs.post."""
        self.transact("coordinator", effect.key, lambda: self._post(effect), finish)

    def _post(self, effect: PostEpoch) -> None:
        for item in effect.vouchers:
            voucher, session = item.voucher.message, item.session.message
            good = signer(DOMAIN, item.session, recover) == session.client == voucher.payer
            good = (
                good
                and signer(DOMAIN, item.voucher, recover) == session.session_key
                and voucher.cumulative <= session.up_to
            )
            assert good, "I4: a voucher in an epoch is not its client's"
            assert self.now <= session.expires, "I1: a voucher under a session that is over"
            self._need_money(
                voucher.cumulative <= self.allocated[voucher.payer],
                "I1: a voucher above the allocation",
            )
        everything = effect.root.final + effect.root.held
        self._need_money(
            everything <= sum(self.allocated.values()), "I1: more credit than allocations"
        )
        last = self.epochs[-1] if self.epochs else NO_EPOCH
        assert effect.number == last.number + 1, f"epoch {effect.number} posted after {last.number}"
        for item in effect.vouchers:
            voucher = item.voucher.message
            self.vouched[voucher.payer] = max(
                self.vouched.get(voucher.payer, 0), voucher.cumulative
            )
        assert effect.root.final <= sum(self.vouched.values()), (
            "I1: an epoch with more final credit than vouchers"
        )
        assert effect.root.final >= last.root.final, "I1: the sum of final credits fell"
        self.epochs.append(Posted(effect.number, effect.root, self.now))
        self.note(ev.ChainEpochPosted(effect.number, effect.root.hash))

    def is_final(self, posted: Posted) -> bool:
        """Whether an epoch's window is over."""
        return posted.at <= self.now - self.limits.challenge_window

    def _need_money(self, is_there: bool, what: str) -> None:
        """A release may finish while an epoch is on its way, and the chain then refuses the epoch.

        That may happen once, and never for a release that the coordinator knew.
        """
        if not is_there:
            assert self.overtaking > 0, what
            self.overtaking -= 1
            raise Refused(Code.CHAIN, "allocation")

    def newest_final(self, account: Address) -> tuple[int, Amount] | None:
        """(number, credit) of an account in the newest epoch whose challenge time is over."""
        final = self._final_epoch()
        if final is None:
            return None
        key = (final.number, account)
        if key not in self._credits:
            found = self.proof_of(final.number, account)
            if found is None:
                return None  # nothing to claim, or the coordinator does not answer
            self._credits[key] = found[0].final
        return final.number, self._credits[key]

    def _final_epoch(self) -> Posted | None:
        return next((item for item in reversed(self.epochs) if self.is_final(item)), None)

    def claim(self, effect: node_effects.SendClaim, owner: Address, finish: Finish) -> None:
        """Epochs.claim. The coordinator serves the proof, so the owner tries again while it is
        away.
        """
        if self.is_proof_away():
            finish(Again(1.0))
            return
        found = self.proof_of(effect.epoch, owner)
        self.transact(
            owner.hex(),
            f"{owner.hex()}-{effect.key}",
            lambda: self._claim(effect, owner, found),
            finish,
        )

    def _claim(
        self, effect: node_effects.SendClaim, owner: Address, found: tuple[Leaf, Proof] | None
    ) -> None:
        final = self._final_epoch()
        if final is None or found is None or final.number != effect.epoch:
            raise Refused(Code.CHAIN, "not the newest final epoch")
        leaf, proof = found
        root = root_of(leaf, proof)
        assert (root.hash, root.final, root.held) == (
            final.root.hash,
            final.root.final,
            final.root.held,
        ), "a proof leads elsewhere"
        assert leaf.account == owner and leaf.final >= self.claimed.get(owner, 0), (
            "I1: a claim below an earlier one"
        )
        self.claimed[owner] = leaf.final

    # ---------------------------------------------------------------------------------------- court

    def open_case(self, effect: OpenCase, finish: Finish) -> None:
        """Court.open_case."""
        self.transact("coordinator", effect.key, lambda: self.court.open(effect), finish)

    def vote(self, purpose: str, vote: Envelope[JuryVote], finish: Finish) -> None:
        """Court.vote."""
        juror = vote.message.juror.hex()
        self.transact(juror, f"{juror}-{purpose}", lambda: self.court.vote(vote), finish)

    def reveal(self, purpose: str, reveal: JuryReveal, finish: Finish) -> None:
        """Court.reveal."""
        juror = reveal.juror.hex()
        self.transact(juror, f"{juror}-{purpose}", lambda: self.court.reveal(reveal), finish)

    def slash(self, owner: Address, amount: int) -> Amount:
        """Takes stake, as much as there is, and removes the provider."""
        taken = min(amount, self.stakes[owner])
        self.stakes[owner] -= taken
        self.burned += taken
        self.note(ev.ChainProviderSlashed(owner, Amount(taken), BlockNumber(self.height)))
        return Amount(taken)

    # ------------------------------------------------------------------------------ reorganisations

    def copies(self) -> object:
        """As `Blocks`."""
        balances = {name: copy(getattr(self, name)) for name in self.BALANCES}
        return balances, self.court.copies()

    def take_back(self, copies: object) -> None:
        """As `Blocks`."""
        balances, cases = copies  # type: ignore[misc]
        for name in self.BALANCES:
            setattr(self, name, balances[name])
        self.court.take_back(cases)
        self._credits.clear()

    def advance(self) -> None:
        """As `Blocks`."""
        self.court.advance()

    # --------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """I1 on chain: money in = stakes + allocations without voucher + pool + paid + burned.

        No balance is negative.
        """
        paid = sum(self.claimed.values())
        pool = sum(self.vouched.values()) - paid
        free = sum(self.allocated.values()) - sum(self.vouched.values())
        assert pool >= 0 and free >= 0, f"I1: pool {pool}, free allocations {free}"
        out = paid + self.burned + sum(self.returned.values())
        held = sum(self.stakes.values()) + free + pool + out
        assert self.tokens_in == held, f"I1: {self.tokens_in} came in, {held} are accounted for"
