"""The base of the core's fuzzing: a world, values at their limits, and how rules pick from it."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from fuzz.core_world import HOSTS, World
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.units import Hash32, Small
from quorate_runtime.keys.crypto import KeySigner
from support.fuzz_properties import COUNTS, EDGES

PICK = st.integers(0, 2**16)
U64 = st.sampled_from([value for value in EDGES if value < 2**64])
U128 = st.sampled_from([value for value in EDGES if value < 2**128]) | st.integers(0, 10**9)
SPAN = st.sampled_from([0, 1, 2, 3, 6, 21, 61, 130, 700, 5_000, 90_000, 400_000])
FLAGS = st.booleans()
DIGESTS = st.sampled_from([Hash32(bytes(32)), Hash32(b"\xff" * 32), *(host.id() for host in HOSTS)])
WHO = st.integers(0, 1)
START_BY = st.sampled_from([0, 1, 5, 19, 21, 600, 2**64 - 1])
SLOT_COUNTS = st.tuples(*[st.sampled_from([0, 1, 3, 255])] * 4)
FREE = st.lists(
    st.builds(FreeSlots, DIGESTS, st.sampled_from([Small(0), Small(255)]), st.just(Small(0))),
    max_size=5,
)
SIGNED = [
    ev.AcceptReceived,
    ev.DeclineReceived,
    ev.CommitReceived,
    ev.HeartbeatReceived,
    ev.RevealReceived,
]
LIES = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=6)


class BaseMachine(RuleBasedStateMachine):
    """One world. Subclasses add rules. Each rule is one thing that some party can cause."""

    limits, owner_count = DEVNET, 5

    def __init__(self) -> None:
        super().__init__()
        COUNTS["core_worlds"] += 1
        self.world = World(self.limits, self.owner_count)

    def lease(self, pick: int) -> leases.Lease | None:
        """One of the newer leases."""
        found = self.world.leases()[-12:]
        return found[pick % len(found)] if found else None

    def near(self, value: int) -> int:
        """Small values are offsets to the present, others stand as they are."""
        return self.world.at + value if value < 10**6 else value

    def key_of(self, lease: leases.Lease | None, by: int, is_own: bool) -> KeySigner:
        """The right key, or anybody's."""
        if lease is not None and is_own:
            return self.world.owner_of(lease).key
        owner = self.world.owners[by % len(self.world.owners)]
        return (owner.old_keys or [owner.key])[0]
