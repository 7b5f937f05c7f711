"""Sources are resolved and pinned before an order: a hub, plain files, an S3-compatible store."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate import Job, Market, Profile, RefusedError, UnavailableError, UsageError
from quorate.cli.job_flags import parse_inputs
from quorate.job.jobfile import parse_job
from quorate.job.packing import PackedJob, pack
from quorate.sources.resolution import Endpoints, SourceResolver
from quorate_content.dag.cid import raw_cid
from quorate_protocol.messages.input_sources import decode
from quorate_protocol.units import Label
from support.http_server import on_loopback
from support.markets.client_jobs import job as small_job
from support.markets.fake_market import Cheat, FakeMarket
from support.web_files import Hub, ObjectStore, WebFiles

IMAGE = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
WEIGHTS = bytes(range(200))
MODEL = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "onnx/model.onnx": WEIGHTS * 2}
CACHE = "/inputs/hf/hub/models--org--model"


def job_with(inputs: Mapping[str, str | Path], **changes: Any) -> Job:
    return Job(image=IMAGE, command=["true"], max_price="1", inputs=inputs, **changes)


class Client:
    """What a Market does with the sources of a job."""

    def __init__(self, home: Path, hub: str = "", s3: str = "", devnet: bool = True) -> None:
        (home / "staging").mkdir(exist_ok=True)
        self.notices: list[str] = []
        self.resolver = SourceResolver(
            home, Endpoints(hub, s3), lambda: home / "staging", self.notices.append, devnet
        )

    async def packed(self, inputs: Mapping[str, str | Path], **changes: Any) -> PackedJob:
        job = job_with(inputs, **changes)
        return pack(job, {IMAGE: 1}, await self.resolver.resolve(job))


def listed(packed: PackedJob, cid: str) -> dict[str, int]:
    """The files of a folder's document, with their sizes."""
    (document,) = (item.path for item in packed.uploads if item.cid == cid)
    return {item.path: item.size_bytes for item in decode(document.read_bytes()).files}


async def test_a_model_is_pinned_to_its_commit_and_laid_out_for_from_pretrained(
    tmp_path: Path,
) -> None:
    hub = Hub({"org/model": dict(MODEL)})
    async with on_loopback(hub.app()) as url:
        client, commit = Client(tmp_path, url + "/"), hub.commit("org/model")
        (given,) = parse_inputs(["hf://org/model"]).items()
        packed = await client.packed(dict([given]))
        ref, snapshot = packed.spec.inputs
        assert ref.mount == f"{CACHE}/refs/main" and not ref.source
        assert snapshot.mount == f"{CACHE}/snapshots/{commit}"
        assert snapshot.source == f"{url}/org/model/resolve/{commit}/"
        assert listed(packed, snapshot.cid) == {name: len(data) for name, data in MODEL.items()}
        assert snapshot.size_bytes == sum(map(len, MODEL.values()))
        assert [item.path.read_text() for item in packed.uploads if item.cid == ref.cid] == [commit]
        assert {item.name: item.value for item in packed.spec.env} == {
            "HF_HUB_CACHE": "/inputs/hf/hub",
            "HF_HUB_OFFLINE": "1",
        }
        (source,) = packed.sources
        assert source.label == "hf://org/model@main" and source.pinned == f"commit {commit[:12]}"
        read = [path for path, _ in hub.files.asked]
        assert read == [f"/org/model/resolve/{commit}/config.json"], "large files are not read"
        again = await Client(tmp_path, url).packed(dict([given]), env={"HF_HUB_OFFLINE": "0"})
        assert len(hub.files.asked) == 1, "the hash of a small file is remembered"
        assert again.spec.inputs == packed.spec.inputs
        assert [item.value for item in again.spec.env] == ["/inputs/hf/hub", "0"]


async def test_parts_and_revisions_of_a_repository(tmp_path: Path) -> None:
    hub = Hub({"org/model": dict(MODEL), "org/data": dict(MODEL)}, revision="v1.0")
    async with on_loopback(hub.app()) as url:
        client, commit = Client(tmp_path, url), hub.commit("org/model")
        packed = await client.packed(
            {
                "/inputs/hf": "hf://org/model@v1.0?include=*.json,*.safetensors",
                "/inputs/w": "hf://org/model@v1.0/model.safetensors",
                "/inputs/onnx": f"hf://org/model@{commit}/onnx/",
                "/inputs/data": "hf://datasets/org/data@v1.0",
            }
        )
        found = {item.mount: item for item in packed.spec.inputs}
        assert f"{CACHE}/refs/main" in found and f"{CACHE}/refs/v1.0" in found
        snapshot = found[f"{CACHE}/snapshots/{commit}"]
        assert listed(packed, snapshot.cid).keys() == {"config.json", "model.safetensors"}
        one, part = found["/inputs/w"], found["/inputs/onnx"]
        assert one.source.endswith("/model.safetensors") and one.cid == str(raw_cid(WEIGHTS))
        assert part.source.endswith("/onnx/") and listed(packed, part.cid) == {"model.onnx": 400}
        assert "/datasets/org/data/resolve/" in found["/inputs/data"].source
        for source, said in (
            ("hf://org/model@v2", "does not exist at"),
            ("hf://org/absent", "does not exist, or is private or gated.*token"),
            ("hf://org/model@v1.0?include=*.bin", "no file that fits"),
        ):
            with pytest.raises(UsageError, match=said) as error:
                await client.packed({"/inputs/m": source})
            assert "inputs./inputs/m" in str(error.value)
        hub.gated.add("org/data")
        with pytest.raises(UsageError, match="gated: only rented machines take a token"):
            await Client(tmp_path, url).packed({"/inputs/m": "hf://datasets/org/data@v1.0"})


async def test_a_busy_hub_is_asked_again(tmp_path: Path) -> None:
    hub = Hub({"org/model": {"config.json": b"{}"}})
    async with on_loopback(hub.app()) as url:
        hub.files.busy[f"/org/model/resolve/{hub.commit('org/model')}/config.json"] = 1
        await Client(tmp_path, url).packed({"/inputs/m": "hf://org/model"})
        assert len(hub.files.asked) == 2
    with pytest.raises(UnavailableError, match="inputs./inputs/m: hf://org/model"):
        await Client(tmp_path, url).packed({"/inputs/m": "hf://org/model"})


async def test_a_file_is_hashed_once_or_never(tmp_path: Path) -> None:
    served = WebFiles({"/f/w.bin": WEIGHTS, "/f/x": b"x"}, etag='"1"', cut={"/f/w.bin": [200, 100]})
    async with on_loopback(served.app()) as url:
        given = parse_inputs([f"{url}/f/w.bin"])
        (packed,) = [await Client(tmp_path).packed(given)]
        assert [(item.mount, item.source) for item in packed.spec.inputs] == [
            ("/inputs/w.bin", f"{url}/f/w.bin")
        ]
        assert packed.spec.inputs[0].cid == str(raw_cid(WEIGHTS)) and not packed.uploads
        spans = [span for _, span in served.asked]
        assert spans == ["", "", "bytes=100-"], "it goes on where it was cut"
        served.sent = 0
        await Client(tmp_path).packed(given)
        assert served.sent <= len(WEIGHTS) and len(served.asked) == 4, "only its head is read"
        served.etag = '"2"'
        await Client(tmp_path).packed(given)
        assert len(served.asked) == 6, "another version is read again"
        digest = hashlib.sha256(b"x").hexdigest()
        served.etag, served.asked = "", []
        packed = await Client(tmp_path).packed({"/inputs/x": f"{url}/f/x#sha256={digest}"})
        assert packed.spec.inputs[0].source == f"{url}/f/x" and len(served.asked) == 1
        with pytest.raises(UsageError, match="own network; providers reach public addresses only"):
            await Client(tmp_path, devnet=False).packed(given)
        with pytest.raises(UsageError, match="status 404"):
            await Client(tmp_path).packed({"/inputs/x": f"{url}/f/y"})


async def test_a_bucket_is_listed_in_pages(tmp_path: Path) -> None:
    objects = {f"set/{number:05d}.txt": b"%d" % number for number in range(2_300)}
    store = ObjectStore(objects | {"set/": b"", "other": b"o"}, summed=set(objects))
    async with on_loopback(store.app()) as url:
        packed = await Client(tmp_path, s3=url).packed({"/inputs/set": "s3://data/set/"})
        assert store.pages == 3 and not store.files.asked, "no object was read"
        (item,) = packed.spec.inputs
        assert item.source == f"{url}/data/set/" and len(listed(packed, item.cid)) == 2_300


async def test_objects_without_a_checksum_of_their_bytes_are_read(tmp_path: Path) -> None:
    objects = {"a b/ü+.bin": b"one", "a b/c/d": b"two", "a b/e": b"three"}
    store = ObjectStore(objects, summed={"a b/e"}, parts={"a b/c/d"})
    async with on_loopback(store.app()) as url:
        given = {"/inputs/f": "s3://data/a b/", "/inputs/d": "s3://data/a b/c/d"}
        packed = await Client(tmp_path).packed(given, s3_endpoint=url)
        one, folder = packed.spec.inputs
        assert one.cid == str(raw_cid(b"two")) and one.source == f"{url}/data/a%20b/c/d"
        assert listed(packed, folder.cid) == {"c/d": 3, "e": 5, "ü+.bin": 3}
        assert {path for path, _ in store.files.asked} == {"/data/a b/ü+.bin", "/data/a b/c/d"}
        with pytest.raises(UsageError, match="has no objects"):
            await Client(tmp_path, s3=url).packed({"/inputs/f": "s3://data/none/"})
        store.prolog += '<!DOCTYPE x [<!ENTITY a "aaaa">]>'
        with pytest.raises(UsageError, match="document type"):
            await Client(tmp_path, s3=url).packed({"/inputs/f": "s3://data/a b/"})


@pytest.mark.rule("4.84")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("https://a.example/w?X-Amz-Signature=1", "is a secret"),
        ("https://u:p@a.example/w", "login"),
        ("https://a.example/folder/", "one file"),
        ("https://a.example/w#sha256=12", "64 hex digits"),
        ("hf://org/model?x=1", "write hf://"),
        ("s3://B/", "write s3://"),
        ("s3://data/w?token=1", "write s3://"),
    ],
)
def test_a_wrong_source_is_named_before_anything_is_asked(source: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        job_with({"/inputs/x": source})
    assert str(error.value).startswith("inputs./inputs/x: ")


def test_sources_in_a_job_file() -> None:
    text = """
image: {image}
command: "true"
max_price: 1
s3_endpoint: http://127.0.0.1:9000
inputs:
- hf://org/model@v1
- {{source: "https://a.example/w.bin", sha256: "{digest}"}}
- {{source: "s3://data/set/", mount: /inputs/set}}
"""
    digest = "ab" * 32
    job = parse_job(text.format(image=IMAGE, digest=digest).encode(), Path())
    assert job.inputs == {
        "/inputs/hf/models--org--model": "hf://org/model@v1",
        "/inputs/w.bin": f"https://a.example/w.bin#sha256={digest}",
        "/inputs/set": "s3://data/set/",
    }
    for entry, said in (
        ("- {source: ./file}", "inputs.source.*write hf://"),
        ("- {source: 's3://data/a', cid: x, mount: /inputs/a}", "exactly one of"),
        ("- {path: a, mount: /inputs/a, sha256: x}", "sha256 is the hash of an https source"),
        ("- {source: 's3://data/a', size: 1GB}", "leave size out"),
    ):
        head = text.format(image=IMAGE, digest=digest).partition("inputs:")[0]
        with pytest.raises(UsageError, match=said):
            parse_job(f"{head}inputs:\n{entry}\n".encode(), Path())


@pytest.mark.rule("4.86")
async def test_the_rule_unverified_needs_the_users_word(
    fake: FakeMarket, profile: Profile, tmp_path: Path
) -> None:
    """An order with a source accepts it for the audit fund's sake alone."""
    served = WebFiles({"/w": b"w"})
    async with on_loopback(served.app()) as url, Market(profile) as market:
        given = small_job(inputs={"/inputs/w": f"{url}/w"})
        fake.cheat = Cheat(plan_rule=Label.UNVERIFIED)
        with pytest.raises(RefusedError, match="Too few owners"):
            await market.submit(given)
        assert not fake.jobs
        fake.cheat = Cheat()
        result = await (await market.submit(given)).result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2
        fake.cheat = Cheat(ack_rule=Label.UNVERIFIED)
        with pytest.raises(RefusedError, match="was stopped: too few owners"):
            await market.submit(replace(given, name="late"))
        *_, taken = fake.jobs.values()
        assert taken.submission.order.message.accept_unverified
        assert [stop.message.job_id for stop in fake.stops] == [taken.job_id]


def test_what_an_order_with_a_source_cannot_have() -> None:
    given = {"/inputs/m": "hf://org/model"}
    for changes, said in (({"escrow": True}, "escrow"), ({"source": "ipfs"}, "source: with ipfs")):
        with pytest.raises(UsageError, match=said):
            job_with(given, **changes)
