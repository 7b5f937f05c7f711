"""Work as people have it: a model of gigabytes by `hf://`, `from_pretrained` without a network, and
a large output, each in sandboxes of a devnet. No daemon's memory grows with any of them.

QUORATE_MODEL_GIB and QUORATE_OUTPUT_GIB set the sizes. With -s the tests print their figures.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from quorate import Job, Market
from quorate.images import build_python_image
from quorate.sources.resolution import Endpoints
from quorate_content.store.disk_share import bytes_below
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_node.base.config import STORE_BYTES_MIN, TransportChoice
from support.bytes_by_source import bytes_by_source
from support.http_server import on_loopback
from support.process_memory import most_resident
from support.requirements import require
from support.web_files import Hub, Sparse, sha256_of

GIB = 1 << 30
MODEL = Sparse(int(os.environ.get("QUORATE_MODEL_GIB", "1")) * GIB)
OUTPUT = int(os.environ.get("QUORATE_OUTPUT_GIB", "1")) * GIB
MOST_RESIDENT = 400 << 20
STATUS_SECONDS = 30.0  # the status is written every second
PROVIDERS = 3


@asynccontextmanager
async def devnet_and_market(folder: Path, hub: Hub) -> AsyncIterator[tuple[Devnet, Market]]:
    config = DevnetConfig(
        folder,
        PROVIDERS,
        clients=1,
        executor=ExecutorChoice.BWRAP,
        transport=TransportChoice.WEBSOCKET,
        store_bytes=STORE_BYTES_MIN + max(MODEL.size, 6 * OUTPUT),
    )
    async with (
        on_loopback(hub.app()) as url,
        running(config) as devnet,
        Market(devnet.profiles[0], endpoints=Endpoints(hub=url)) as market,
    ):
        yield devnet, market


async def until_sent(hub: Hub, size: int) -> float:
    while hub.files.sent < size:
        await asyncio.sleep(0.05)
    return time.monotonic()


# What a loader does: it opens the weights by the name of the model, and reads here and there.
READER = """
import os, pathlib, sys
cache = pathlib.Path(os.environ["HF_HUB_CACHE"]) / "models--org--model"
snapshot = cache / "snapshots" / (cache / "refs" / "main").read_text()
with open(snapshot / "model.safetensors", "rb") as file:
    count = file.seek(0, 2) >> 20
    for number in range(0, count, 64):
        file.seek(number << 20)
        assert int.from_bytes(file.read(8), "big") == number
open(sys.argv[1], "w").write(f"{count} MiB")
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.rule("4.83", "4.85", "4.89")
async def test_a_model_of_gigabytes_goes_from_its_hub_to_two_owners(
    image: Path, tmp_path: Path
) -> None:
    require("bwrap")
    config = b'{"model_type": "large"}'
    hub, total = Hub({"org/model": {"config.json": config}}), len(config) + MODEL.size
    hub.repos["org/model"]["model.safetensors"] = MODEL
    hub.files.cut[f"/cdn/{sha256_of(MODEL)}"] = [MODEL.size // 2]  # the first answer breaks off
    job = Job(
        image=image,
        command=["python3", "-c", READER, "/outputs/seen"],
        inputs={"/inputs/hf": "hf://org/model"},
        max_price=5,
        max_duration="5m",
    )
    async with devnet_and_market(tmp_path / "net", hub) as (devnet, market):
        plan, began = await market.plan(job), time.monotonic()
        assert plan.upload_bytes < image.stat().st_size + 4096
        async with asyncio.TaskGroup() as tasks:  # a job that fails ends the waiting too
            sent = [tasks.create_task(until_sent(hub, count * total)) for count in (1, 2)]
            result = await (await market.submit(job, plan)).result(tmp_path / "output")
            assert result.is_success and len(result.providers) == 2
        ended = time.monotonic()
        peak = most_resident(os.getpid())
        async with asyncio.timeout(STATUS_SECONDS):
            while bytes_by_source(devnet)["hub"] < 2 * total:
                await asyncio.sleep(0.05)
        found = bytes_by_source(devnet)
        store = devnet.config.coordinator_home / "store"
        kept = bytes_below(store)
    assert (tmp_path / "output" / "seen").read_text() == f"{MODEL.size >> 20} MiB"
    assert found["hub"] % total == 0
    assert kept < image.stat().st_size + (4 << 20), "image, list of files, results, index"
    first, second = (task.result() - began for task in sent)
    print(f"model of {MODEL.size >> 30} GiB: {found['hub']:,} bytes from the hub, ", end="")
    print(f"{found['others']:,} from others, {kept:,} at the coordinator; ", end="")
    print(f"the owners had it after {first:.0f} and {second:.0f} s, ", end="")
    print(f"all took {ended - began:.0f} s; {peak >> 20} MiB at most")
    assert peak < MOST_RESIDENT


# Offline, by the libraries of the field, with a user's own class of model.
PROGRAM = """
import json, sys
from huggingface_hub import ModelHubMixin, hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors.numpy import load_file
from tokenizers import Tokenizer

class Embedding(ModelHubMixin):
    def __init__(self, width):
        self.width = width

    @classmethod
    def _from_pretrained(cls, *, model_id, force_download, token, width, **where):
        model = cls(width)
        model.weights = load_file(hf_hub_download(model_id, "model.safetensors", **where))
        return model

ids = Tokenizer.from_pretrained("org/model").encode("owners run jobs").ids
model = Embedding.from_pretrained("org/model")
seen = {"ids": ids, "width": model.width, "vectors": model.weights["embedding"][ids].tolist()}
seen["same"] = snapshot_download("org/model") == snapshot_download("org/model", revision="v1")
try:
    hf_hub_download("org/absent", "config.json")
except (LocalEntryNotFoundError, OfflineModeIsEnabled):
    seen["absent"] = "not asked for"
json.dump(seen, open(sys.argv[1], "w"))
"""


@pytest.mark.bwrap
@pytest.mark.rule("4.83")
async def test_from_pretrained_finds_a_model_without_a_network(tmp_path: Path) -> None:
    image = build_python_image(
        tmp_path / "libraries.tar", ("numpy", "safetensors", "tokenizers")
    ).path
    words = Tokenizer(WordLevel({"jobs": 0, "owners": 1, "run": 2, "?": 3}, "?"))
    words.pre_tokenizer = Whitespace()
    weights = numpy.arange(16, dtype=numpy.float32).reshape(4, 4)
    files = {
        "config.json": json.dumps({"width": 4}).encode(),
        "model.safetensors": save({"embedding": weights}),
        "tokenizer.json": words.to_str().encode(),
    }
    job = Job(
        image=image,
        command=["python3", "-c", PROGRAM, "/outputs/seen.json"],
        inputs={"/inputs/hf": "hf://org/model@v1"},
        max_price=5,
        max_duration="2m",
    )
    hub = Hub({"org/model": dict(files)}, revision="v1")
    async with devnet_and_market(tmp_path / "net", hub) as (_, market):
        result = await (await market.submit(job)).result(tmp_path / "output")
    assert result.is_success and len(result.providers) == 2
    assert json.loads((tmp_path / "output" / "seen.json").read_text()) == {
        "ids": [1, 2, 0],
        "width": 4,
        "vectors": weights[[1, 2, 0]].tolist(),
        "same": True,
        "absent": "not asked for",
    }


WRITER = """
import sys
with open("/outputs/checkpoint", "wb") as file:
    for number in range(int(sys.argv[1]) >> 24):
        file.seek(number << 24)
        file.write(number.to_bytes(8, "big"))
    file.truncate(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.rule("4.82", "4.89")
async def test_an_output_of_gigabytes_arrives_with_flat_memory(image: Path, tmp_path: Path) -> None:
    require("bwrap")
    require("mounts")
    job = Job(
        image=image,
        command=["python3", "-c", WRITER, str(OUTPUT)],
        max_price=5,
        max_duration="5m",
        resources={"outputs": OUTPUT + (1 << 20)},
    )
    began = time.monotonic()
    async with devnet_and_market(tmp_path / "net", Hub()) as (_, market):
        ready = time.monotonic()
        result = await (await market.submit(job)).result(tmp_path / "output")
        peak = most_resident(os.getpid())
    assert result.is_success and len(result.providers) == 2
    written = result.output / "checkpoint"
    assert written.stat().st_size == OUTPUT
    with written.open("rb") as file:
        file.seek(OUTPUT - (1 << 24))
        assert int.from_bytes(file.read(8), "big") == (OUTPUT >> 24) - 1
    assert peak < MOST_RESIDENT
    took = time.monotonic() - ready
    print(
        f"{OUTPUT >> 30} GiB in {took:.0f} s after {ready - began:.0f} s; {peak >> 20} MiB at most"
    )
