"""Where a provider fetches content from, the settings for it, and the answers of a Kubo."""

from pathlib import Path

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.store.fetch_order import Source, gateway_source
from quorate_content.transfer.kubo import check_import, gateway_of
from quorate_node.base import settings as settings_file
from quorate_node.base.config import (
    GIB,
    STORE_BYTES_MIN,
    Config,
    Settings,
    store_bytes,
    store_spare_bytes,
)
from quorate_node.market.content_sources import OwnerGateways, job_sources
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Price
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock

STORE = Source("http://10.0.0.1:7700/v1/content", name="coordinator 10.0.0.1:7700")
SETTINGS = Settings(coordinators=("http://10.0.0.1:7700",), price=Price(1))
CID = raw_cid(b"x")
ROOT = {"Root": {"Cid": {"/": str(CID)}, "PinErrorMsg": ""}}


async def test_named_gateways_come_before_the_owners_and_the_coordinators_store_is_last() -> None:
    job = job_sources([STORE.url + "/", "http://a/ipfs"], [STORE], may_be_private=False)
    owner = OwnerGateways(("http://127.0.0.1:8080", "http://127.0.0.1:8081/ipfs/"))
    found = await owner.in_order(job, SystemClock())
    assert [source.name for source in found] == [
        "job a",
        "gateway 127.0.0.1:8080",
        "gateway 127.0.0.1:8081",
        "coordinator 10.0.0.1:7700",
    ]
    assert [source.searches for source in found] == [False, True, True, False]
    assert [source.may_be_private for source in found] == [False, True, True, True]


@pytest.mark.rule("4.26")
@pytest.mark.parametrize("may_be_private", [False, True])
async def test_gateways_of_the_job_spec_come_first_and_are_strangers(may_be_private: bool) -> None:
    job = job_sources(["http://a/ipfs"], [STORE], may_be_private)
    named = job.with_gateways(("https://first.example", "http://second.example/ipfs"))
    found = await OwnerGateways(("http://127.0.0.1:8080",)).in_order(named, SystemClock())
    assert [source.url for source in found] == [
        "https://first.example/ipfs",
        "http://second.example/ipfs",
        "http://a/ipfs",
        "http://127.0.0.1:8080/ipfs",
        STORE.url,
    ]
    assert [source.may_be_private for source in found[:2]] == [may_be_private] * 2
    assert all(source.searches for source in found[:2]), "they are probed first"


def test_a_gateway_may_be_named_with_or_without_its_path() -> None:
    assert gateway_source("gateway", "https://ipfs.example").url == "https://ipfs.example/ipfs"
    assert gateway_source("gateway", "http://[::1]:8080/ipfs/").name == "gateway [::1]:8080"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("/ip4/127.0.0.1/tcp/8080", "http://127.0.0.1:8080"),
        ("/ip4/0.0.0.0/tcp/8080", "http://kubo.home:8080"),
        ("/ip6/::1/tcp/8080", "http://[::1]:8080"),
        ("/unix/tmp/gateway", ""),
        ("", ""),
    ],
)
def test_the_gateway_of_a_kubo_is_read_from_its_address(address: str, url: str) -> None:
    assert gateway_of(address, "http://kubo.home:5001") == url


def test_an_import_counts_only_if_our_root_is_named_without_a_pin_error() -> None:
    check_import(CID, [ROOT, {"Stats": {"BlockCount": 1}}])
    other = {"Root": {"Cid": {"/": str(raw_cid(b"y"))}, "PinErrorMsg": ""}}
    failed = {"Root": {"Cid": {"/": str(CID)}, "PinErrorMsg": "context deadline exceeded"}}
    for lines, why in (([], "did not name"), ([other], "did not name"), ([failed], "deadline")):
        with pytest.raises(Refused, match=why):
            check_import(CID, lines)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ipfs_gateways": ("ftp://x",)}, "ipfsGateways"),
        ({"ipfs_gateways": ("http://x",) * 9}, "ipfsGateways"),
        ({"ipfs_kubo": "127.0.0.1:5001"}, "ipfsKubo"),
    ],
)
def test_wrong_gateways_are_refused_by_the_name_of_their_field(
    changes: dict[str, object], field: str, tmp_path: Path
) -> None:
    settings_file.write(tmp_path, replace(SETTINGS, **changes))
    with pytest.raises(Refused, match=field):
        settings_file.read(tmp_path)


def test_gateways_and_kubo_reach_the_configuration(tmp_path: Path) -> None:
    settings = replace(SETTINGS, ipfs_gateways=("http://127.0.0.1:8080",), ipfs_kubo="http://k:1")
    settings_file.write(tmp_path, settings)
    config = Config.of(settings_file.read(tmp_path), tmp_path)
    assert (config.ipfs_gateways, config.ipfs_kubo) == (("http://127.0.0.1:8080",), "http://k:1")


def test_the_store_may_take_half_of_what_is_free_unless_the_owner_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a model of 140 GB fits on a machine whose disk has room for it."""
    usage = type("Usage", (), {"total": 900 * GIB, "free": 400 * GIB})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert store_bytes(0, tmp_path / "not" / "there") == 200 * GIB
    (tmp_path / "store" / "objects").mkdir(parents=True)
    with open(tmp_path / "store" / "objects" / "held", "wb") as file:
        file.truncate(2 * GIB)
    (tmp_path / "store" / "link").symlink_to(tmp_path / "store" / "objects" / "held")
    assert store_bytes(0, tmp_path) == 201 * GIB, "what it holds counts as free, and once"
    assert store_bytes(7 * GIB, tmp_path) == 7 * GIB
    assert store_spare_bytes(tmp_path, is_sized=True) == 2 * GIB
    assert store_spare_bytes(tmp_path, is_sized=False) == 100 * GIB, "the owner's files may grow"
    usage.free = GIB
    assert store_bytes(0, tmp_path) == STORE_BYTES_MIN
