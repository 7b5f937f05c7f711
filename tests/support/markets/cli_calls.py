"""Runs commands of the client in this process against the fake market."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quorate.cli.main import run_main
from quorate.client.base.profile import create_profile
from support.cli_prompt import password_file
from support.markets.fake_market import FakeMarket

IMAGE = "docker.io/library/python@sha256:" + "ab" * 32
Call = Callable[..., Awaitable[tuple[int, str, str]]]


def cli_calls(fake: FakeMarket, folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Returns a function that runs a command as a devnet's client: (exit code, stdout, stderr)."""
    create_profile(folder / "alice", fake.url, "pass", "devnet")
    password = password_file(folder, "pass")
    alice = {"name": "alice", "home": str(folder / "alice"), "passwordFile": str(password)}
    devnet = {"coordinator": fake.url, "clients": [alice]}
    (folder / "devnet.json").write_text(json.dumps(devnet))

    async def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        flags = ["--devnet", str(folder / "devnet.json")]
        code = await asyncio.to_thread(run_main, [*flags, *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run
