"""What a provider has challenged, and which of its slots name the records."""

from pathlib import Path

import pytest

from quorate_attestation.claims import standard_sizes
from quorate_content.store.content_store import ContentStore
from quorate_node.core.terms import RunSlots
from quorate_node.market.attestation_service import claims_of_slots
from quorate_node.market.published_records import Published, PublishedDocument, PublishedRecords
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.units import Hash32, Round, Small, UnixSeconds
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import recorded
from support.markets.gpu_provider import ROOM, gpu_terms
from support.offers import a_slot
from support.virtual_clock import VirtualClock

PEER_KEY = Hash32(b"\x05" * 32)
H100 = Pool("H100 SXM", "", Small(1))
PAIR = replace(H100, gpus=Small(2))
MODEL = "H100 SXM"
RECORD = Hash32(b"\x09" * 32)


@pytest.mark.rule("10.5", "10.18")
def test_gpus_in_run_slots_and_the_cpu_are_claimed() -> None:
    inventory = recorded("eight-h100-sxm")
    uuids = tuple(device.uuid for device in inventory.devices)
    offered = RunSlots(a_slot(H100, 100_000, 2), ROOM, ((uuids[0],), (uuids[3],)))
    found = claims_of_slots(lambda: gpu_terms(offered), inventory, PEER_KEY)
    assert [claim.uuid for claim in found] == [uuids[0], uuids[3], f"cpu-{PEER_KEY.hex()}"]
    assert [claim.model for claim in found] == [MODEL, MODEL, "cpu"]
    assert all(claim.parameters == standard_sizes(claim) for claim in found)


def slots(*pools: tuple[Pool, int]) -> tuple[SlotOffer, ...]:
    return tuple(a_slot(pool, 100_000, count, vram_bytes=80 << 30) for pool, count in pools)


@pytest.mark.rule("10.20")
@pytest.mark.parametrize(
    ("offered", "levels"),
    [
        (slots((H100, 4)), [1]),
        (slots((H100, 5)), [0]),
        (slots((H100, 2), (PAIR, 1)), [1, 1]),
        (slots((H100, 4), (PAIR, 2)), [0, 0]),  # one GPU cannot stand in two pools
    ],
)
async def test_slots_name_records_that_cover_all_their_gpus(
    tmp_path: Path, offered: tuple[SlotOffer, ...], levels: list[int]
) -> None:
    store = ContentStore(tmp_path / "store", 1 << 24)
    clock = VirtualClock(1_700_000_000)
    records = PublishedRecords(store, tmp_path / "records.json", clock)
    live = UnixSeconds(1_700_000_100)
    records.newest = Published(Round(1), (PublishedDocument(MODEL, RECORD, 4, live),))
    named = records.attested(offered)
    assert [slot.attestation_level for slot in named] == levels
    assert [slot.record == RECORD for slot in named] == [bool(level) for level in levels]
    await store.close()
