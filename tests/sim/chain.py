"""The simulated chain: stakes, allocations, vouchers, epochs, claims and cases. One block a second.

It keeps its own sums (I1 on chain) and checks what the contracts check. If a post of an honest
coordinator breaks one of those checks, that is a violation and not a refusal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import OpenCase, PostEpoch
from quorate_node.core import effects as node_effects
from quorate_node.core import events as node_events
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope, signer
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import JuryReveal, JuryVote
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, root_of
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, UnixSeconds
from quorate_runtime.keys.crypto import recover
from sim.court import Court
from sim.operator_keys import OperatorKeys
from sim.parties import DOMAIN, key
from sim.process import Again, Finish
from sim.schedule import Schedule

REVERT_CHANCE = 0.25  # chance that a post or a case is first refused for good


@dataclass(slots=True)
class Block:
    """What one block changed, as the coordinator reads it."""

    time: UnixSeconds
    notes: list[ev.ChainNote] = field(default_factory=list)


@dataclass(slots=True)
class Posted:
    """An epoch on chain."""

    number: int
    root: Node
    at: UnixSeconds


class Chain:
    """The ledger and its clock."""

    def __init__(self, schedule: Schedule, random: Random, limits: Limits, host: Hash32) -> None:
        self.schedule, self.random, self.limits = schedule, random, limits
        self.host = host  # the id of the class of all stake slots
        self.blocks: list[Block] = [Block(schedule.now)]
        self.is_moody = True
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
        self.proof_of: Callable[[int, Address], tuple[Leaf, Proof] | None] = (
            lambda number, account: None
        )
        self.court = Court(self)
        self._pending: list[ev.ChainNote] = []
        self._seen: dict[str, int] = {}  # reader -> news it has read
        self._all_news: list[node_events.Event] = []
        self._executed: dict[str, Refused | None] = {}
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
        self.left.add(owner)
        self.note(
            *(
                ev.ChainSlotClosed(self.host, place, BlockNumber(self.height + 1))
                for place in self._places[owner]
            )
        )

    def request_release(self, client: Address, amount: int) -> None:
        """Escrow.request_release: nothing more may be ordered for the amount.

        Vouchers can still claim it until the release is finished.
        """
        self.releases[client] = amount, self.schedule.now + self.limits.allocation_release
        self._tell_allocation(client)

    def finish_release(self, client: Address) -> None:
        """Escrow.finish_release: the client gets what vouchers left of the amount."""
        amount, ready = self.releases.pop(client)
        assert self.schedule.now >= ready, "a release needs its time"
        freed = min(amount, self.allocated[client] - self.vouched.get(client, 0))
        self.allocated[client] -= freed
        self.returned[client] = self.returned.get(client, 0) + freed
        self.overtaking += 1
        self._tell_allocation(client)

    def allocate(self, client: Address, amount: int) -> None:
        """Escrow.allocate, from money that came back."""
        assert amount <= self.returned[client], "nobody has more than it took back"
        self.returned[client] -= amount
        self.allocated[client] += amount
        self._tell_allocation(client)

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
        self.keys[owner].rotate(self.schedule.now)
        self.note(ev.ChainKeyRotated(owner, self.keys[owner].current.address, self.schedule.now))

    @property
    def height(self) -> int:
        """Number of the newest block."""
        return len(self.blocks)

    def mine(self) -> None:
        """Adds one block and advances the court."""
        self.court.advance()
        self.blocks.append(Block(self.schedule.now, self._pending))
        self._pending = []
        self.check()

    def note(self, *notes: ev.ChainNote) -> None:
        """Queues an event for coordinators, in the next block."""
        self._pending.extend(notes)

    def tell(self, event: node_events.Event) -> None:
        """Queues an event for providers."""
        self._all_news.append(event)

    def notes_after(self, block: int) -> ev.ChainAdvanced | None:
        """Everything that happened after a block, as one batch."""
        if block >= self.height:
            return None
        notes = tuple(note for item in self.blocks[block:] for note in item.notes)
        digest = hash_tuple("block", self.height)
        return ev.ChainAdvanced(BlockNumber(self.height), digest, self.blocks[-1].time, notes)

    def news_for(self, reader: str) -> list[node_events.Event]:
        """Events that a provider has not read yet."""
        return self._all_news[self._seen.get(reader, 0) :]

    def took(self, reader: str) -> None:
        """Notes that the provider read one more event."""
        self._seen[reader] = self._seen.get(reader, 0) + 1

    # --------------------------------------------------------------------------------- transactions

    def _transact(self, purpose: str, act: Callable[[], None], finish: Finish) -> None:
        """Executes a transaction once per purpose, some time later; repeats get the same result."""

        def execute() -> None:
            if purpose not in self._executed:
                if self.is_moody and self.random.random() < 0.05:
                    finish(Again(1.0))
                    return
                try:
                    if (
                        self.is_moody
                        and purpose.startswith(("epoch-", "case-"))
                        and self.random.random() < REVERT_CHANCE
                    ):
                        raise Refused(Code.CHAIN, "reverted")
                    act()
                    self._executed[purpose] = None
                except Refused as refused:
                    self._executed[purpose] = refused
            finish(self._executed[purpose])

        longest = (
            90
            if "SendVote" in purpose
            else 30
            if self.is_moody and purpose.startswith("epoch-")
            else 0
        )
        is_jammed = longest > 0 and self.random.random() < 0.25
        self.schedule.after(
            self.random.uniform(5, longest) if is_jammed else self.random.uniform(0.3, 2.5), execute
        )

    def post(self, effect: PostEpoch, finish: Finish) -> None:
        """Epochs.post."""
        self._transact(effect.key, lambda: self._post(effect), finish)

    def _post(self, effect: PostEpoch) -> None:
        for item in effect.vouchers:
            voucher, session = item.voucher.message, item.session.message
            good = signer(DOMAIN, item.session, recover) == session.client == voucher.client
            good = (
                good
                and signer(DOMAIN, item.voucher, recover) == session.session_key
                and voucher.cumulative <= session.up_to
            )
            assert good, "I4: a voucher in an epoch is not its client's"
            assert self.schedule.now <= session.expires, (
                "I1: a voucher under a session that is over"
            )
            self._need_money(
                voucher.cumulative <= self.allocated[voucher.client],
                "I1: a voucher above the allocation",
            )
        everything = effect.root.final + effect.root.held
        self._need_money(
            everything <= sum(self.allocated.values()), "I1: more credit than allocations"
        )
        for item in effect.vouchers:
            voucher = item.voucher.message
            self.vouched[voucher.client] = max(
                self.vouched.get(voucher.client, 0), voucher.cumulative
            )
        last = (
            self.epochs[-1]
            if self.epochs
            else Posted(0, Node(Hash32(bytes(32)), Amount(0), Amount(0)), UnixSeconds(0))
        )
        assert effect.number == last.number + 1, f"epoch {effect.number} posted after {last.number}"
        assert effect.root.final <= sum(self.vouched.values()), (
            "I1: an epoch with more final credit than vouchers"
        )
        assert effect.root.final >= last.root.final, "I1: the sum of final credits fell"
        self.epochs.append(Posted(effect.number, effect.root, self.schedule.now))
        self.note(ev.ChainEpochPosted(effect.number, effect.root.hash))

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
        end = self.schedule.now - self.limits.challenge_window
        return next((item for item in reversed(self.epochs) if item.at <= end), None)

    def claim(self, effect: node_effects.SendClaim, owner: Address, finish: Finish) -> None:
        """Epochs.claim."""
        self._transact(f"{owner.hex()}-{effect.key}", lambda: self._claim(effect, owner), finish)

    def _claim(self, effect: node_effects.SendClaim, owner: Address) -> None:
        final = self._final_epoch()
        found = self.proof_of(effect.epoch, owner)
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
        self._transact(effect.key, lambda: self.court.open(effect), finish)

    def vote(self, purpose: str, vote: Envelope[JuryVote], finish: Finish) -> None:
        """Court.vote."""
        self._transact(
            f"{vote.message.juror.hex()}-{purpose}", lambda: self.court.vote(vote), finish
        )

    def reveal(self, purpose: str, reveal: JuryReveal, finish: Finish) -> None:
        """Court.reveal."""
        self._transact(f"{reveal.juror.hex()}-{purpose}", lambda: self.court.reveal(reveal), finish)

    def slash(self, owner: Address, amount: int) -> Amount:
        """Takes stake, as much as there is, and removes the provider."""
        taken = min(amount, self.stakes[owner])
        self.stakes[owner] -= taken
        self.burned += taken
        self.note(ev.ChainProviderSlashed(owner, Amount(taken), BlockNumber(self.height)))
        return Amount(taken)

    # --------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """I1 on chain: money in = stakes + allocations without voucher + pool + paid + burned.

        No balance is negative.
        """
        pool = sum(self.vouched.values()) - sum(self.claimed.values())
        free = sum(self.allocated.values()) - sum(self.vouched.values())
        assert pool >= 0 and free >= 0, f"I1: pool {pool}, free allocations {free}"
        out = sum(self.claimed.values()) + self.burned + sum(self.returned.values())
        held = sum(self.stakes.values()) + free + pool + out
        assert self.tokens_in == held, f"I1: {self.tokens_in} came in, {held} are accounted for"
