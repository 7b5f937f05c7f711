"""Tests what a job file means, and that each mistake gets an error that names it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.base.errors import UsageError
from quorate.client.base.signed_requests import draft_order
from quorate.images import build_python_image
from quorate.job.job import Job
from quorate.job.jobfile import parse_job
from quorate.job.packing import pack
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.rules import settlement
from quorate_protocol.units import Address, Bps, Comparator, Label, Ppm, Small, VerifyTier

IMAGE = "python@sha256:" + "0" * 64
MINIMAL = f"image: {IMAGE}\nmax_price: 0.30\n"
HERE = Path(".")


def spec_of(text: str, folder: Path = HERE):  # type: ignore[no-untyped-def]
    return pack(parse_job(text.encode(), folder), {}).spec


def mistake(text: str) -> str:
    with pytest.raises(UsageError) as error:
        pack(parse_job(text.encode(), HERE), {})
    return str(error.value)


def test_a_full_file_gives_the_expected_job(tmp_path: Path) -> None:
    (tmp_path / "scene.json").write_text("{}")
    text = f"""
type: batch
name: render
image: {IMAGE}
command: [python, -c, "print(1)", 7]
working_dir: /outputs
env: {{SEED: 42, MODE: on, RATE: 1.10, FLAG: true}}
inputs: [{{path: scene.json}}, {{path: scene.json, mount: /inputs/other/name.json}}]
outputs: out
pool: H100 SXM
attestation: L1
determinism: vllm
resources: {{gpu: "24GB..:2", cpu: 4, memory: 8GB.., disk: 1GiB, shm: 1GB,
  min_compute_capability: 8.9}}
max_duration: 1h30m
max_price: 1.10
budget: 12
verify: {{tier: strict, accept_unverified: true, max_executions: 5}}
"""
    job = parse_job(text.encode(), tmp_path)
    spec = pack(job, {}).spec
    assert spec.attestation_level == 1 and spec.determinism == "vllm"
    assert (
        spec.argv == ("python", "-c", "print(1)", "7") and spec.shell == "" and job.name == "render"
    )
    variables = {item.name: item.value for item in spec.env}
    assert variables == {"SEED": "42", "MODE": "on", "RATE": "1.10", "FLAG": "true"}
    assert [item.mount for item in spec.inputs] == ["/inputs/other/name.json", "/inputs/scene.json"]
    asked, gpu = spec.resources, spec.resources.gpu
    assert gpu is not None and (gpu.count, gpu.vram_bytes_min) == (2, 24 * 10**9)
    assert gpu.compute_capability_min == 89
    assert (asked.cpu_millis, asked.memory_bytes) == (4000, 8 * 10**9)
    assert asked.output_bytes == 1 << 30 and spec.max_duration == 5400
    assert (job.price(), job.budget_amount()) == (1_100_000, 12_000_000)
    assert job.tier() is VerifyTier.STRICT and job.accept_unverified and job.max_executions == 5
    assert job.outputs == tmp_path / "out"
    assert job.host() == Pool("H100 SXM", "", Small(1)).id()


@pytest.mark.parametrize("text", ["verify: unverified\n", "verify: {tier: unverified}\n"])
def test_a_result_that_nobody_checks_is_a_choice(text: str, tmp_path: Path) -> None:
    job = parse_job((MINIMAL + text).encode(), tmp_path)
    spec = pack(job, {}).spec
    account = Address(b"\1" * 20)
    order = draft_order(job, spec, account, account, Bps(200)).order
    assert order.verify_tier is VerifyTier.NONE and order.accept_unverified
    assert (order.max_executions, order.audit_premium_bps, order.caseable) == (1, 0, False)
    once = settlement.worst_charge(order, Label.UNVERIFIED, Bps(200))
    assert order.budget == once, "one execution at the highest price, with the fee"


def test_two_executions_may_start_at_once(tmp_path: Path) -> None:
    job = parse_job((MINIMAL + "verify: quorum-2\nspeed: fast\n").encode(), tmp_path)
    assert job.tier() is VerifyTier.QUORUM_2_FAST
    assert "needs verify: quorum-2" in mistake(MINIMAL + "speed: fast\n")
    assert "speed" in mistake(MINIMAL + "verify: quorum-2\nspeed: quick\n")


def test_the_same_file_gives_the_same_spec() -> None:
    text = MINIMAL + "env: {B: 1, A: 2}\n"
    assert spec_of(text).cid() == spec_of(MINIMAL + "env: [A=2, B=1]\n").cid()


def test_a_tolerance_is_a_share_of_the_numbers() -> None:
    found = spec_of(MINIMAL + "verify: {compare: numeric, include: ['*.npy'], tolerance: 0.0015}\n")
    assert found.compare == Compare(Comparator.NUMERIC, ("*.npy",), Ppm(1500))
    assert spec_of(MINIMAL + "verify: {compare: text}\n").compare == Compare(Comparator.TEXT)
    assert spec_of(MINIMAL).compare == Compare()


def test_commands_become_a_shell_script() -> None:
    spec = spec_of(MINIMAL + "commands: [cd /tmp, ls]\n")
    assert spec.command() == ("/bin/sh", "-c", "set -e\ncd /tmp\nls")


IN_A_FILE = [  # what follows the image and the price
    ("resources: {memry: 1GB}\n", "resources.memry: unknown key; did you mean 'memory'?"),
    ("verify: {teir: lean}\n", "verify.teir: unknown key; did you mean 'tier'?"),
    ("inputs: [{pth: x}]\n", "inputs.0.pth: unknown key; did you mean 'path'?"),
    ("xyzzy: 1\n", "xyzzy: unknown key; known here are"),
    (
        "resources: {accelerators: H100}\n",
        "resources.accelerators: this key is of another program; write resources.gpu",
    ),
    ("run: ls\n", "run: this key is of another program; write commands"),
    ("setup: pip\n", "setup: this key is of another program"),
    ("ports: [80]\n", "ports: this key is not supported yet"),
    ("spot_policy: spot\n", "spot_policy: this key is of another program; write spot: true"),
    ("type: gang\n", "type:"),
    ("budget: 0\n", "budget: 0 must be above zero"),
    ("budget: 1e3\n", "budget: '1e3' is no amount"),
    ("budget: .inf\n", "budget: '.inf' is no amount"),
    ("max_duration: 1:30\n", "max_duration: '1:30' is not a duration"),
    ("resources: {memory: 8}\n", "resources.memory:"),
    ("command: [a]\ncommands: [b]\n", "command: give either"),
    ("image: other\n", "line 3: the key 'image' is given twice"),
    (
        "inputs: [{cid: nonsense, mount: /inputs/a}]\n",
        "inputs./inputs/a: 'nonsense' is neither a CID",
    ),
    ("inputs: [{path: '', mount: /inputs/a}]\n", "inputs.0.path"),
    ("inputs: {data: a.csv}\n", "inputs: write a list, such as"),
    ("inputs: [a.csv]\n", "inputs.0: write a mapping of mount, cid, path, size"),
    ("resources: big\n", "resources: write a mapping of gpu, cpu"),
    ("inputs: [{path: /no/such/file}]\n", "does not exist"),
    ("inputs: [{path: a, cid: b, mount: /inputs/a}]\n", "give exactly one of cid, path and source"),
    ("inputs: [{path: a}, {path: b/a}]\n", "/inputs/a is given twice"),
    ("env: {LD_PRELOAD: x}\n", "LD_PRELOAD is reserved"),
    ("pool: hopper/132/550\n", "pool: hopper/132/550 is a host class, and pools took their"),
    ("determinism: tf\n", "determinism: 'tf' is not a profile; write one of none"),
    ("verify: {compare: image}\n", "compare: 'image'; choose one of exact, numeric, text"),
    ("verify: {compare: text, tolerance: 1e-3}\n", "tolerance: '1e-3' is not a share; write"),
    ("verify: {compare: text, tolerance: 0.2}\n", "compare.tolerancePpm: 0 to 100000 millionths"),
    ("verify: {tolerance: 0.001}\n", "compare: exact compares all files"),
    ("verify: {compare: text, include: ['']}\n", "compare.include: 1 to 16 patterns"),
    ("attestation: L2\n", "attestation: 'L2'; write L1"),
    ("pool: 0x12\n", "pool: '0x12' is not a pool's id"),
    ("name: Not Good\n", "job: name: 'Not Good' is no name; use lower-case"),
]
AS_A_FILE = [
    ("imge: x\nmax_price: 1\n", "imge: unknown key; did you mean 'image'?"),
    (f"image: {IMAGE}\n", "max_price: this key is missing"),
    (f"image: {IMAGE}\nmax_price: -1\n", "max_price: '-1' is negative"),
    (
        f"image: {IMAGE}\nmax_price: 99999999999\n",
        "max_price: 99999999999 must be above zero and at most",
    ),
    (f"image: {IMAGE}\nmax_price: {'9' * 30}\n", "max_price:"),
    ("image: absent.tar\nmax_price: 1\nname: Not Good\n", "job: name:"),  # before the image
    ("image: python:3.12\nmax_price: 1\n", "image: 'python:3.12' is not a valid image name"),
    ("image: ./absent.tar\nmax_price: 1\n", "quorate image build"),
    ("- 1\n", "it must be a mapping"),
    ("", "it must be a mapping"),
    ("a: [\n", "not valid YAML"),
    ("!!python/object/apply:os.system [ls]\n", "not valid YAML"),
    ("a: &a [*a]\n", "not valid YAML"),
    ("? [1]\n: 2\n", "a key must be plain text"),
]


@pytest.mark.parametrize(
    ("text", "named"), [*((MINIMAL + text, named) for text, named in IN_A_FILE), *AS_A_FILE]
)
def test_mistakes_are_named(text: str, named: str) -> None:
    assert named in mistake(text)


def test_yaml_bombs_are_refused() -> None:
    doubling = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 31)
    )
    assert "values after expanding" in mistake(doubling)
    assert "aliases" in mistake("a: &a x\nb: [" + ", ".join(["*a"] * 65) + "]\n")
    assert "nested deeper" in mistake("[" * 5000)
    assert "bytes; at most" in mistake("#" * (256 * 1024 + 1))
    assert "values after expanding" in mistake("a: [" + "1," * 30_000 + "]")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_usage_error(data: bytes) -> None:
    try:
        parse_job(data, HERE)
    except UsageError:
        return


@given(st.text(alphabet="ab:-[]{}&*\n \"'#!|>%?,0.", max_size=80))
def test_any_yaml_like_text_is_a_job_or_a_usage_error(text: str) -> None:
    try:
        parse_job(text.encode(), HERE)
    except UsageError:
        return


def test_a_shell_command_needs_an_image_with_a_shell(tmp_path: Path) -> None:
    build_python_image(tmp_path / "image.tar", ())
    good = spec_of("image: ./image.tar\nmax_price: 1\ncommand: [python, -V]\n", tmp_path)
    assert (
        good.image.startswith("ba") and good.image_bytes == (tmp_path / "image.tar").stat().st_size
    )
    with pytest.raises(UsageError, match="command: the image has no shell.*argv"):
        spec_of("image: ./image.tar\nmax_price: 1\ncommands: [ls]\n", tmp_path)
    rented = Job(image=tmp_path / "image.tar", max_price=1, type="dev-environment")
    assert "quorate image build --shell" in pack(rented, {}).warning
    assert not pack(replace(rented, type="service"), {}).warning
