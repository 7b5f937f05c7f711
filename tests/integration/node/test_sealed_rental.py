"""A real provider daemon rents a machine with egress and secrets, and leaks none of them."""

import asyncio
import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from quorate_node.base.config import RentalTerms
from quorate_node.core.phases import Fetching, Live, Over
from quorate_node.daemon import ProviderDaemon
from quorate_node.rentals.secrets import SecretStore
from quorate_protocol.messages import frames
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.messages.ports import RegistryLogin
from quorate_protocol.messages.rental_secrets import RentalSecrets, SecretFile, SecretVariable
from quorate_protocol.messages.signed import Stop
from quorate_protocol.refusals import Code
from quorate_protocol.units import JobKind, Seconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import BoxKey
from support.changing_folders import files_below
from support.executors.executor_cases import MIB, make_executor, what_is_left
from support.markets.scripted_coordinator import JOB, SPEC, Stage, in_phase, running, until
from support.messages import blank
from support.refusals import refuses
from support.requirements import require

CLIENT, COORDINATOR, BOX = (BoxKey(bytes([number]) * 32) for number in (1, 2, 6))
WORDS = [f"VerySecret{name}" for name in ("Key", "Variable", "Password", "Token")]
SECRETS = RentalSecrets(
    files=(SecretFile("key", WORDS[0].encode()),),
    variables=(SecretVariable("API_KEY", WORDS[1]),),
    registry=RegistryLogin("ghcr.io", "me", WORDS[2]),
    hub_token=WORDS[3],
    hub="https://huggingface.co",
)
PROGRAM = """
import hashlib, json, os, socket, time
found = {"key": hashlib.sha256(open("/run/secrets/key", "rb").read()).hexdigest()}
found["proxy"] = os.environ["https_proxy"], os.environ["NO_PROXY"]
for _ in range(200):
    try:
        link = socket.create_connection(("127.0.0.1", 3128), 10)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
link.sendall(b"CONNECT 169.254.169.254:80 HTTP/1.1\\r\\n\\r\\n")
found["said"] = link.recv(999).decode().splitlines()[-1]
print(json.dumps(found), flush=True)
time.sleep(600)
"""


def lessor(market: Stage, folder: Path) -> ProviderDaemon:
    keys = dataclasses.replace(market.keys(), box=BOX)
    made = market.daemon(
        market.coordinator.url, executor=make_executor("docker-runc", folder), keys=keys
    )
    made.config = replace(made.config, rentals=RentalTerms.ON_DEMAND, egress=("*",))
    return made


@pytest.mark.docker
@pytest.mark.rule("12.30", "12.35", "12.36")
async def test_a_sealed_rental_waits_runs_survives_a_restart_and_leaks_nothing(
    market: Stage, image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require("mounts")
    caplog.set_level("DEBUG")
    coordinator = market.coordinator
    stored = await coordinator.store.put(image.read_bytes(), "test", None)
    spec = replace(
        SPEC,
        kind=JobKind.DEV_ENVIRONMENT,
        image=str(stored.cid),
        image_bytes=image.stat().st_size,
        argv=("python3", "-c", PROGRAM),
        max_duration=Seconds(600),
        resources=Resources(output_bytes=8 * MIB),
        egress=("*",),
        seal_key=CLIENT.public,
    )
    box = CLIENT.seal(BOX.public, SECRETS.encode())
    async with running(market, lessor(market, tmp_path)) as daemon:
        offered = (await coordinator.first(frames.OfferSent)).offer.offer
        assert offered.egress == ("*",) and JobKind.DEV_ENVIRONMENT in offered.kinds
        lease = await market.assign(daemon, spec=spec)
        await in_phase(daemon, lease, Fetching)
        await asyncio.sleep(1.0)
        await in_phase(daemon, lease, Fetching)
        forged = COORDINATOR.seal(BOX.public, SECRETS.encode())
        with refuses(Code.DOES_NOT_OPEN):
            await coordinator.send(frames.SecretsSent(lease, forged))
        with refuses(Code.UNKNOWN):
            await coordinator.send(frames.SecretsSent(JOB, box))
        for _ in range(2):
            await coordinator.send(frames.SecretsSent(lease, box))
        await in_phase(daemon, lease, Live)
        said = json.loads((await coordinator.first(frames.LogsSent)).text)
        assert said["key"] == hashlib.sha256(WORDS[0].encode()).hexdigest()
        assert said["proxy"] == ["http://127.0.0.1:3128", "localhost,127.0.0.1,::1"]
        assert said["said"].startswith("egress proxy: only names of public hosts")
    async with running(market, lessor(market, tmp_path)) as daemon:
        await in_phase(daemon, lease, Live)
        store = SecretStore(market.home / "secrets", BOX)
        assert store.env_of(lease.hex()) == {"API_KEY": WORDS[1]}
        kept = [
            path for path in files_below(tmp_path) if market.home / "secrets" not in path.parents
        ]
        assert len(kept) > 10 and (market.home / "journal").exists()
        content = {path: path.read_bytes() for path in kept}
        known = (CLIENT.public, CLIENT.public.hex().encode())
        assert [path for path, data in content.items() if any(word in data for word in known)]
        hidden = [*map(str.encode, WORDS), box, box.hex().encode()]
        assert not [path for path, data in content.items() if any(word in data for word in hidden)]
        stop = coordinator.seal(blank(Stop, job_id=JOB))
        await coordinator.send(frames.StopSent(lease, stop))
        await in_phase(daemon, lease, Over)
        await until(lambda: True if not (market.home / "secrets" / lease.hex()).exists() else None)
    sent = b"".join(frames.encode(frame) for frame in coordinator.frames).decode()
    assert not [word for word in WORDS if word in sent or word in caplog.text]
    assert box.hex() not in sent + caplog.text
    assert await asyncio.to_thread(what_is_left, "docker-runc", tmp_path) == 0
