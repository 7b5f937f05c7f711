"""Two owners run a job over a model that a hub has, and the coordinator sees none of its bytes."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from quorate import Job, Market, RefusedError
from quorate.sources.resolution import Endpoints
from quorate_content.dag.cid import raw_cid
from quorate_content.store.disk_share import bytes_below
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import running
from quorate_node.base.config import TransportChoice
from quorate_protocol.units import Label
from support.bytes_by_source import bytes_by_source
from support.changing_folders import paths_below
from support.http_server import on_loopback
from support.web_files import Hub

PROVIDERS = 3
SECONDS = 120.0
WEIGHTS = hashlib.sha256(b"weights").digest() * (1 << 20)  # 32 MiB, far above a block
CONFIG = b'{"model_type": "tiny"}'
# What `from_pretrained("org/model")` does without a network.
PROGRAM = """
import hashlib, os, pathlib, sys
cache = pathlib.Path(os.environ["HF_HUB_CACHE"]) / "models--org--model"
snapshot = cache / "snapshots" / (cache / "refs" / "main").read_text()
names = sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())
digest = hashlib.sha256((snapshot / "model.safetensors").read_bytes()).hexdigest()
open(sys.argv[1], "w").write(" ".join([os.environ["HF_HUB_OFFLINE"], digest, *names]))
"""


@pytest.mark.rule("4.83", "4.85", "4.86")
async def test_a_model_goes_from_its_hub_to_the_owners(image: Path, tmp_path: Path) -> None:
    hub = Hub({"org/model": {"config.json": CONFIG, "sub/notes.txt": b"", "z.txt": b"z"}})
    hub.repos["org/model"]["model.safetensors"] = WEIGHTS
    total = len(CONFIG) + len(WEIGHTS) + 1
    config = DevnetConfig(
        tmp_path / "devnet",
        PROVIDERS,
        clients=1,
        executor=ExecutorChoice.PROCESS,
        transport=TransportChoice.WEBSOCKET,
    )
    async with on_loopback(hub.app()) as url, running(config) as devnet:
        # The revision's first large answer is busy, and the second is cut off.
        place = f"/cdn/{hashlib.sha256(WEIGHTS).hexdigest()}"
        hub.files.busy[place], hub.files.cut[place] = 1, [len(WEIGHTS) // 2]
        async with Market(devnet.profiles[0], endpoints=Endpoints(hub=url)) as market:
            job = Job(
                image=image,
                command=["python3", "-c", PROGRAM, "/outputs/seen"],
                inputs={"/inputs/hf": "hf://org/model"},
                max_price="5",
                max_duration="60s",
            )
            plan = await market.plan(job)
            assert plan.upload_bytes < image.stat().st_size + 4096
            assert [item.size_bytes for item in plan.packed.sources] == [total]
            run = await market.submit(job, plan)
            result = await run.result(tmp_path / "output")
            assert result.is_success and len(result.providers) == 2
            assert result.rule is Label.QUORUM_2, "the order accepts unverified, and is verified"
            digest = hashlib.sha256(WEIGHTS).hexdigest()
            names = "config.json model.safetensors sub/notes.txt z.txt"
            assert (tmp_path / "output" / "seen").read_text() == f"1 {digest} {names}"
            async with asyncio.timeout(SECONDS):  # the status is written every second
                while bytes_by_source(devnet)["hub"] < 2 * total:
                    await asyncio.sleep(0.05)
            store = config.coordinator_home / "store"
            assert not [path for path in paths_below(store) if str(raw_cid(WEIGHTS)) in path.name]
            kept = bytes_below(store)
            assert kept < image.stat().st_size + (4 << 20), "image, list of files, results, index"
            found = bytes_by_source(devnet)
            assert found["hub"] % total == 0
            print(f"from the hub {found['hub']:,} bytes, from others {found['others']:,}, ", end="")
            print(f"at the coordinator {kept:,} of all content")
            lonely = Job(
                image=image,
                command=job.command,
                inputs=job.inputs,
                max_price="5",
                resources={"cpu": 512},
            )
            with pytest.raises(RefusedError):  # no rule was asked for that no owner can keep
                await market.submit(lonely)
