"""A client at its terminal, on a devnet whose providers rent machines."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_node.base.config import TransportChoice
from support.executors.image_archives import add_layer

ANSWER_SECONDS = 120.0  # of a forwarded port, which several programs have to start for
PROGRAMS = ("bash", "cat", "cp", "gzip", "head", "ls", "mkdir", "sleep", "tar", "touch")
SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8123, bind='127.0.0.1')"
JUPYTER = """#!/bin/sh
for word; do case $word in --port=*) port=${word#--port=} ;; esac; done
exec python3 -m http.server "$port" --bind 127.0.0.1
"""  # stands for the real one, which an image of megabytes has


@dataclass
class Desk:
    """A client at its terminal."""

    devnet: Devnet
    image: Path
    folder: Path
    charged: int = 0  # to the client, by what a test has checked

    async def quorate(self, *words: str, status: int | None = 0) -> str:
        """Returns what it prints."""
        done = await asyncio.to_thread(self._run, *words)
        told = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode != -signal.SIGABRT, told
        assert status is None or done.returncode == status, told
        return done.stdout or done.stderr

    async def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.quorate(*words, "--json"))
        return found

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        with subprocess.Popen(
            self.words(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment() | {"PYTHONFAULTHANDLER": "1"},
            cwd=self.folder,
            start_new_session=True,
        ) as process:
            try:
                out, errors = process.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGABRT)  # it says where it hangs
                out, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def words(self, *words: str) -> list[str]:
        return [str(Path(sys.executable).with_name("quorate")), *words]

    def environment(self) -> dict[str, str]:
        devnet = str(self.devnet.config.folder / "devnet.json")
        return {**os.environ, "QUORATE_DEVNET": devnet, "HOME": str(self.folder)}


def with_a_shell(base: Path, target: Path) -> Path:
    """Writes an archive like `base` with a shell and some of this machine's small programs."""
    files: dict[str, Path] = {}
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, name
        files[f"usr/local/bin/{name}"] = Path(found)
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        places = [word for word in listed.split() if word.startswith("/")]
        files |= {word.lstrip("/"): Path(word).resolve() for word in places}
    jupyter = target.with_name("jupyter-lab")
    jupyter.write_text(JUPYTER)
    files |= {"bin/sh": files["usr/local/bin/bash"], "usr/local/bin/jupyter-lab": jupyter}
    add_layer(base, target, files, ())
    return target


@asynccontextmanager
async def opened_desk(image: Path, folder: Path) -> AsyncIterator[Desk]:
    """With one provider, which has one slot."""
    config = DevnetConfig(
        folder / "devnet",
        providers=1,
        clients=1,
        executor=ExecutorChoice.DOCKER,
        transport=TransportChoice.WEBSOCKET,
        rentals=True,
        spot_percent=50,
    )
    made = await asyncio.to_thread(with_a_shell, image, folder / "image.tar")
    async with running(config) as devnet:
        yield Desk(devnet, made, folder)


async def forwarded(desk: Desk, name: str, port: int) -> bytes:
    """Starts a server in the rental, and returns what it answers at `port` of this machine."""
    server = f"trap '' HUP; python3 -c \"{SERVER}\" >/dev/null 2>&1 & echo started"
    await desk.quorate("shell", name, "--", server)
    words = desk.words("forward", name, f"8123:{port}")
    process = subprocess.Popen(words, env=desk.environment(), stderr=subprocess.PIPE)
    try:
        answer = await asyncio.to_thread(asked, f"http://127.0.0.1:{port}/")
    finally:
        process.terminate()
        told = process.communicate()[1]
    return answer + b"\n" + told


def asked(url: str) -> bytes:
    last, limit = b"", time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < limit:
        try:
            answer: bytes = urllib.request.urlopen(url, timeout=5).read()
            return answer
        except OSError as error:
            last = repr(error).encode()
            time.sleep(0.2)
    return last
