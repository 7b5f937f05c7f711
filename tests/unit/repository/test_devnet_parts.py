"""Tests small pure parts of the devnet: lies, pictures, order of jobs, folders."""

import asyncio
import itertools
import json
import struct
import zlib
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.job.job import Job
from quorate_devnet.demo.client_orders import PRICER, RENDERER, Orders, interleaved
from quorate_devnet.demo.run_demo import assemble, png
from quorate_devnet.demo.scenario import combined_price, examples_folder, read_scene
from quorate_devnet.market.child_processes import ChildProcesses
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice, clear_folder
from quorate_devnet.market.devnet import _Startup
from quorate_devnet.market.genesis import network_of
from quorate_devnet.market.liar import lie
from quorate_node.base.config import ExecutorKind, TransportChoice
from quorate_protocol.refusals import Unavailable
from quorate_runtime import p2p

ONE, OTHER = b"\x01" * 32, b"\x02" * 32
PRICE = b'{"paths": 400000, "payoff_sum": 1312769604378, "price_micro": 5954474, "seed": 1}\n'


@pytest.mark.parametrize(
    "data",
    [
        PRICE,
        bytes(range(256)) * 100,
        b"\xff" * 5000,
        b"x",
        b"",
        b"plain text\n",
        b"[]",
        b'{"a": 100}',
    ],
)
def test_a_lie_differs_and_is_always_the_same(data: bytes) -> None:
    assert lie(data, ONE) != data
    assert lie(data, ONE) == lie(data, ONE)


@pytest.mark.parametrize("data", [PRICE, bytes(range(256)) * 100])
def test_two_liars_lie_differently(data: bytes) -> None:
    assert lie(data, ONE) != lie(data, OTHER)


def test_a_lie_about_a_price_looks_like_a_price() -> None:
    told, honest = json.loads(lie(PRICE, ONE)), json.loads(PRICE)
    assert told.keys() == honest.keys()
    assert 0.9 * honest["price_micro"] < told["price_micro"] < honest["price_micro"]


def test_a_lie_about_pixels_keeps_their_number() -> None:
    pixels = bytes(range(256)) * 75
    told = lie(pixels, ONE)
    assert (
        len(told) == len(pixels)
        and 0 < sum(a != b for a, b in zip(told, pixels, strict=True)) <= 2000
    )


def test_tiles_become_the_rows_of_a_picture() -> None:
    tiles = [bytes([number]) * (3 * 2 * 2) for number in range(4)]
    rows = assemble(tiles, 2, 2, 2)
    assert rows == (b"\0" * 6 + b"\1" * 6) * 2 + (b"\2" * 6 + b"\3" * 6) * 2


def test_a_png_holds_the_pixels() -> None:
    pixels = bytes(range(2 * 3 * 3))
    data = png(2, 3, pixels)
    size, kind = struct.unpack(">I4s", data[8:16])
    assert kind == b"IHDR" and struct.unpack(">II", data[16:24]) == (2, 3)
    start = 8 + 12 + size
    length = int.from_bytes(data[start : start + 4], "big")
    rows = zlib.decompress(data[start + 8 : start + 8 + length])
    assert rows == b"".join(b"\0" + pixels[at : at + 6] for at in (0, 6, 12))


def test_tiles_and_prices_alternate() -> None:
    few, many = [(1, seed) for seed in range(4)], [(0, tile) for tile in range(10)]
    mixed = interleaved(few, many)
    assert sorted(mixed) == sorted(few + many)
    places = [mixed.index(item) for item in few]
    assert places == sorted(places) and max(b - a for a, b in itertools.pairwise(places)) <= 5


async def test_orders_until_a_lie_are_parts_that_are_needed_anyway() -> None:
    class Client:
        async def submit(self, job: Job) -> SimpleNamespace:
            never = asyncio.Event()
            return SimpleNamespace(name=job.name, job_id=job.name.encode(), result=never.wait)

    market: Any = Client()
    scene = read_scene(examples_folder())
    orders = Orders((market, market), scene, examples_folder(), str(scene.cid), "http://127.0.0.1")
    await orders.place_first()
    first = [await orders.place_extra(PRICER) for _ in range(2)]
    assert [item.is_extra for item in orders.placed[-2:]] == [False, True], first
    for _ in range(scene.tiles):
        await orders.place_extra(RENDERER)
    assert await orders.place_rest() == 2 and orders.are_all_placed
    await orders.cancel()


def test_prices_are_combined_by_their_paths(tmp_path: Path) -> None:
    for name, micro, paths in (("a", 6_000_000, 100), ("b", 5_000_000, 300)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "price.json").write_text(
            json.dumps({"price_micro": micro, "paths": paths})
        )
    assert combined_price([tmp_path / "a", tmp_path / "b"]) == "5.2500"


def test_the_example_scene_divides_into_whole_tiles() -> None:
    scene = read_scene(examples_folder())
    assert (
        scene.tiles >= 8
        and scene.tile_width * scene.columns == scene.width
        and scene.tile_height * scene.rows == scene.height
    )


def test_every_provider_has_a_network_of_its_own(tmp_path: Path) -> None:
    config = DevnetConfig(tmp_path, 5, liars=1)
    assert len({network_of(config.host(index)) for index in range(5)}) == 5
    assert config.price(0) < config.price(1), "a liar is cheaper than everybody"
    assert config.slots_of(0) == 2 and config.slots_of(1) == 1


@pytest.mark.parametrize(
    ("providers", "liars", "clients"), [(0, 0, 1), (3, 4, 1), (3, 0, 0), (99, 0, 1)]
)
def test_impossible_devnets_are_refused(
    tmp_path: Path, providers: int, liars: int, clients: int
) -> None:
    with pytest.raises(ValueError, match="a devnet has 1 to|at most as many"):
        DevnetConfig(tmp_path, providers, liars, clients)


def test_only_a_devnets_own_files_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "provider-0").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path)
    (tmp_path / "devnet.json").write_text("{}")
    assert clear_folder(tmp_path, 0) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "ready").mkdir()
    (tmp_path / "password").write_text("devnet\n")  # a devnet that ended early
    assert clear_folder(tmp_path, 0) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        clear_folder(tmp_path, 0)


def test_homes_and_outputs_of_people_are_kept(tmp_path: Path) -> None:
    def fill() -> None:
        for home in ("client-0/outputs", "client-1/keys", "provider-0/store", "provider-mine/keys"):
            (tmp_path / home).mkdir(parents=True)
            (tmp_path / home / "file").write_text("content")
        (tmp_path / "devnet.json").write_text("{}")

    for day in range(2):
        fill()
        assert clear_folder(tmp_path, day * 86_400) == ["client-0", "provider-mine"]
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("file"))
    assert kept == [
        f"earlier/1970-01-0{day}T00.00.00/{home}/file"
        for day in (1, 2)
        for home in ("client-0/outputs", "provider-mine/keys")
    ]


@pytest.mark.parametrize("name", ["logs", "provider-1", "coordinator", "password"])
def test_a_folder_with_only_similar_names_is_not_emptied(tmp_path: Path, name: str) -> None:
    """Once `quorate devnet up --dir` emptied folders with other programs' logs or a real provider's
    keys.
    """
    precious = tmp_path / name if name == "password" else tmp_path / name / "keys.json"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious")
    with pytest.raises(ValueError, match=f"holds '{name}', which no devnet wrote"):
        clear_folder(tmp_path, 0)
    assert precious.read_text() == "precious"


def test_docker_means_runc_even_with_gvisor_installed() -> None:
    """An engine that learns of gVisor must not change the sandbox of the demo and the tests."""
    assert ExecutorChoice.DOCKER.kind() is ExecutorKind.DOCKER_RUNC
    assert ExecutorChoice.DOCKER_RUNSC.kind() is ExecutorKind.DOCKER_RUNSC
    assert {choice.kind() for choice in ExecutorChoice if not choice.is_engine} == {
        ExecutorKind.AUTO,
        ExecutorKind.BWRAP,
        ExecutorKind.PROCESS,
        ExecutorKind.NOOP,
    }


async def test_devnet_says_why_it_does_without_libp2p(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p2p, "available", lambda: "libp2p is missing: install it")
    told: list[str] = []

    def listen(choice: TransportChoice) -> Awaitable[str]:
        config = DevnetConfig(tmp_path, transport=choice)
        return _Startup(config, ChildProcesses(tmp_path), told.append)._p2p_listen()

    assert await listen(TransportChoice.AUTO) == ""
    assert told == ["connections use WebSocket: libp2p is missing: install it"]
    assert await listen(TransportChoice.WEBSOCKET) == "" and len(told) == 1
    with pytest.raises(Unavailable, match="libp2p is missing: install it; or use --transport auto"):
        await listen(TransportChoice.LIBP2P)
