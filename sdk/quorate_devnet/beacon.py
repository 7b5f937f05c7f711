"""The devnet's beacon: rounds in drand's format over HTTP.

A local key signs them, never before their time.

Start it by `python -m quorate_devnet.beacon --port 0 --seed HEX --genesis UNIX --period 2
--ready-file PATH`. For development only: anyone with the seed knows every round in advance.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from aiohttp import web

from quorate_devnet.chain.ready_file import write_private, write_ready
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Round, Seconds
from quorate_runtime.http.beacon_client import SCHEME
from quorate_runtime.keys import bls

ROUND_DIGITS_MAX = 18
GENESIS = 1_700_000_000


@dataclass(frozen=True, slots=True)
class BeaconConfig:
    """Settings of the local beacon.

    `seed` has at least 16 bytes; the same seed gives the same rounds.
    """

    seed: bytes
    genesis: int
    period: Seconds = Seconds(2)
    host: str = "127.0.0.1"
    port: int = 0


class LocalBeacon:
    """Signs rounds whose time has come."""

    def __init__(self, config: BeaconConfig, clock: Callable[[], float] = time.time) -> None:
        self._secret = bls.keygen(config.seed)
        self.info = BeaconInfo(bls.public_key(self._secret), config.period, config.genesis)
        self._clock = clock
        self._signed = lru_cache(maxsize=1024)(self._sign)

    def latest(self) -> Round:
        """Returns the newest round, or 0 before the first."""
        return round_at(self.info, int(self._clock()))

    def form(self, number: Round) -> dict[str, object] | None:
        """Returns a round in drand's format, or None if it has not come yet."""
        return self._signed(number) if 1 <= number <= self.latest() else None

    def info_form(self) -> dict[str, object]:
        facts = (
            self.info.public_key
            + self.info.period.to_bytes(4, "big")
            + self.info.genesis_time.to_bytes(8, "big")
        )
        return {
            "public_key": self.info.public_key.hex(),
            "period": int(self.info.period),
            "genesis_time": self.info.genesis_time,
            "hash": sha256(facts).hexdigest(),
            "groupHash": sha256(b"group" + facts).hexdigest(),
            "schemeID": SCHEME,
            "metadata": {"beaconID": "quorate-devnet"},
        }

    def _sign(self, number: Round) -> dict[str, object]:
        made = bls.beacon_round(self._secret, number)
        return {
            "round": int(number),
            "randomness": made.randomness.hex(),
            "signature": made.signature.hex(),
        }


@contextlib.asynccontextmanager
async def running_beacon(
    config: BeaconConfig, clock: Callable[[], float] = time.time
) -> AsyncIterator[str]:
    """Serves a beacon until the context ends. Yields its URL."""
    runner = web.AppRunner(_application(LocalBeacon(config, clock)), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        yield f"http://{config.host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _application(beacon: LocalBeacon) -> web.Application:
    async def info(_: web.Request) -> web.Response:
        return web.json_response(beacon.info_form())

    async def public(request: web.Request) -> web.Response:
        wanted = request.match_info["round"]
        number = beacon.latest() if wanted == "latest" else Round(int(wanted))
        form = beacon.form(number)
        return (
            web.json_response({"error": "this round has not come yet"}, status=404)
            if form is None
            else web.json_response(form)
        )

    application = web.Application(client_max_size=1024)
    application.router.add_get("/info", info)
    application.router.add_get(f"/public/{{round:latest|[0-9]{{1,{ROUND_DIGITS_MAX}}}}}", public)
    return application


async def _run(config: BeaconConfig, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_beacon(config) as url:
        info = LocalBeacon(config).info_form()
        write_ready(
            ready_file,
            {
                "url": url,
                "public_key": str(info["public_key"]),
                "info": json.dumps(info, sort_keys=True),
            },
        )
        await stop.wait()


def _kept_seed(path: Path) -> bytes:
    if not path.exists():
        write_private(path, os.urandom(32).hex())
    return bytes.fromhex(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m quorate_devnet.beacon", description="A drand-format beacon for development."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8546, help="port; 0 picks a free one")
    seed = parser.add_mutually_exclusive_group(required=True)
    seed.add_argument("--seed", type=bytes.fromhex, help="the seed, at least 16 bytes in hex")
    seed.add_argument(
        "--seed-file",
        type=Path,
        help=(
            "file with the seed in hex; it is made if absent, so that a restart gives the same "
            "rounds"
        ),
    )
    parser.add_argument(
        "--genesis", type=int, default=GENESIS, help="time of round 1 in unix seconds"
    )
    parser.add_argument("--period", type=int, default=2, help="seconds between rounds")
    parser.add_argument(
        "--ready-file",
        type=Path,
        help='file to write {"url": ..., "public_key": ...} to once the beacon answers',
    )
    options = parser.parse_args()
    options.seed = options.seed or _kept_seed(options.seed_file)
    if len(options.seed) < 16 or options.period < 1:
        parser.error("the seed needs at least 16 bytes and the period at least one second")
    config = BeaconConfig(
        options.seed, options.genesis, Seconds(options.period), options.host, options.port
    )
    asyncio.run(_run(config, options.ready_file))


if __name__ == "__main__":
    main()
