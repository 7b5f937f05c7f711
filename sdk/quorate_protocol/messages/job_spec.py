"""The job spec: what a client wants to run.

A spec is a canonical document with a CID. `Order.spec_hash` is its digest.
"""

import re
from base64 import b64decode
from collections.abc import Iterable
from typing import ClassVar

from quorate_protocol.codec import canonical, cids, text_writer
from quorate_protocol.codec.merkle import merkle_root
from quorate_protocol.limits import SPEC_BYTES_MAX, TREE_ENTRIES_MAX
from quorate_protocol.messages import egress
from quorate_protocol.messages.determinism import (
    Profile,
    check_variables,
    own_threads,
    profile_of,
    with_threads,
)
from quorate_protocol.messages.document import Document
from quorate_protocol.messages.input_sources import (
    FOLDER_BYTES_MAX,
    check_file,
    fault_of,
    is_folder,
)
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.readable import Readable
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Comparator, Hash32, JobKind, Ppm, Seconds, Small

MIB = 1 << 20
GIB = 1 << 30
ARGV_MAX = 256
ENV_MAX = 128
INPUTS_MAX = 64
GATEWAYS_MAX = 8
ALL_FILES = ("**",)
INCLUDE_MAX = 16
PATTERN_MAX = 256
# A result of zeros is as far from any other as that one is large. So twice the tolerance must stay
# far below one.
TOLERANCE_PPM_MAX = 100_000
COMPARED_BYTES_MAX = 4 * GIB  # of an output that the coordinator opens to compare it
COMPARATORS = (Comparator.EXACT, Comparator.NUMERIC, Comparator.TEXT)
GATEWAY_TEXT_MAX = 256
TEXT_MAX = 8192
DURATION_MAX = 30 * 24 * 3600
START_WITHIN_DEFAULT = Seconds(600)
SCRATCH_IN_MEMORY = 256 * MIB  # more than that, and than half of the memory, lies on disk
FETCH_UNPAID_BYTES = 10 * 10**9  # of image and inputs
FETCH_PAID_PER_SECOND = 100 * 10**6  # the agreed rate beyond them
GPU_MODEL_MAX = 64
COMPUTE_CAPABILITY_MAX = 999
CUDA_MAX = 999
ACCESS_MAX = 16
PUBLIC_KEY_MAX = 1024  # characters; 716 of an RSA key of 4096 bits
_PUBLIC_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com) ([A-Za-z0-9+/]+={0,2})"
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_GATEWAY = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]{1,253}(/[A-Za-z0-9._~/-]*)?")
_DIGEST_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,200}@sha256:([0-9a-f]{64})")
ATTESTATION_LEVEL_MAX = 1  # no provider offers level 2 yet
SANDBOXES = ("", *(kind.value for kind in Sandbox))
RESERVED_ENV = ("LD_", "NVIDIA_", "QUORATE_", "DOCKER_")


class EnvVar(Readable, frozen=True):
    """One environment variable of the job."""

    name: str
    value: str


class Input(Readable, frozen=True, omit_defaults=True):
    """Content that the job sees as a read-only mount. The document leaves out an empty source."""

    cid: str
    mount: str  # absolute path inside the container, below /inputs/
    size_bytes: int  # the provider fetches at most so many bytes
    source: str = ""  # the URL from which executors fetch it (PROTOCOL 4.83)


class GpuRequest(Readable, frozen=True, omit_defaults=True):
    """The GPUs that a job needs. The document leaves out a field that has its default."""

    count: int
    model: str  # as people call it; empty = any model with enough memory
    vram_bytes_min: int  # least memory of each GPU
    compute_capability_min: int = 0  # ten times the number: 90 is 9.0; 0 = any
    cuda_min: int = 0  # ten times the least CUDA of the driver: 124 is 12.4; 0 = any


class Resources(Readable, frozen=True):
    """Limits of one execution. The executor enforces each of them."""

    cpu_millis: int = 1000  # thousandths of a core
    memory_bytes: int = 1 * GIB
    shm_bytes: int = 64 * MIB  # shared memory (/dev/shm)
    scratch_bytes: int = SCRATCH_IN_MEMORY  # /scratch and /tmp
    output_bytes: int = 256 * MIB
    output_inodes: int = 4096
    pids: int = 256  # processes and threads
    gpu: GpuRequest | None = None

    @property
    def disk_scratch_bytes(self) -> int:
        """Of /scratch and /tmp together, if they lie on disk; 0 if in memory (PROTOCOL 11.7)."""
        in_memory = max(SCRATCH_IN_MEMORY, self.memory_bytes // 2)
        return self.scratch_bytes if self.scratch_bytes > in_memory else 0


class Compare(Readable, frozen=True):
    """How the results of two executions are compared (PROTOCOL §5 Batches)."""

    comparator: Comparator = Comparator.EXACT
    include: tuple[str, ...] = ALL_FILES  # patterns as of `fnmatch`: the files that count
    tolerance_ppm: Ppm = Ppm(0)  # up to this distance two results agree


class JobSpec(Document, frozen=True):
    """One job: its program, inputs, limits and the way its results are compared."""

    # Left out at their defaults.
    LATER_FIELDS: ClassVar[tuple[str, ...]] = (
        *("public", "determinism", "spot", "egress", "seal_key"),
        *("access", "idle_stop"),
    )

    kind: JobKind
    image: str  # CID of a docker archive, or name@sha256:digest
    image_bytes: int  # greatest size of an image that is named by its CID; 0 for registry images
    argv: tuple[str, ...]  # empty = the image's own command
    shell: str  # a command line for the image's sh instead of argv; "" = none
    env: tuple[EnvVar, ...]
    working_dir: str
    inputs: tuple[Input, ...]
    resources: Resources
    max_duration: Seconds
    compare: Compare
    sandbox: str = ""  # ports.Sandbox value that the offer must have; "" = any
    attestation_level: Small = Small(0)  # least level of the run slot (PROTOCOL §10): 0 or 1
    # IPFS gateways that have image and inputs: base URLs, which are asked in this order.
    gateways: tuple[str, ...] = ()
    public: bool = False  # anybody may read the run once it is over (PROTOCOL 4.60)
    # A name of `determinism.PROFILES` (2.35); empty = torch for a job with GPUs, none without.
    determinism: str = ""
    # Of a rental: it may end within 30 s because its owner needs the machine (PROTOCOL 12.37).
    spot: bool = False
    # After the Ack. A job that has not started by then, and waits for a provider, ends unpaid.
    start_within: Seconds = START_WITHIN_DEFAULT
    # Of a rental: hosts that it may reach (PROTOCOL 12.29), sorted; none = it has no network.
    egress: tuple[str, ...] = ()
    # Of a rental: X25519 key that its client made for this order. Its provider waits for secrets
    # that are sealed by it (PROTOCOL 12.33). Zero = there are none.
    seal_key: Hash32 = ZERO_HASH
    # Of a rental: who may connect (PROTOCOL 12.24), each as OpenSSH writes a public key.
    access: tuple[str, ...] = ()
    idle_stop: Seconds = Seconds(0)  # of a rental: it ends after so long without use; 0 = never
    version: int = 1

    def input_bytes(self) -> int:
        """Declared bytes of its inputs, and of its image if that is named by a CID."""
        return sum(item.size_bytes for item in self.inputs) + self.image_bytes

    def kept(self) -> dict[str, int]:
        """CIDs that the coordinator keeps, with their most bytes: image and uploads. Of what comes
        from a source it keeps a folder's document only.
        """
        found = {self.image: self.image_bytes} if is_image_cid(self.image) else {}
        for item in self.inputs:
            if not item.source or is_folder(item.source):
                found[item.cid] = FOLDER_BYTES_MAX if item.source else item.size_bytes
        return found

    def has_sources(self) -> bool:
        return any(item.source for item in self.inputs)

    @property
    def is_sealed(self) -> bool:
        return self.seal_key != ZERO_HASH

    def store_bytes(self) -> int:
        """Declared bytes that its provider's content store keeps: `input_bytes`, and the output."""
        return self.input_bytes() + self.resources.output_bytes

    def fetch_allowance(self) -> Seconds:
        """The longest time of its own fetch that a provider is paid for (PROTOCOL 4.17)."""
        beyond = max(0, self.input_bytes() - FETCH_UNPAID_BYTES)
        return Seconds(beyond // FETCH_PAID_PER_SECOND)

    def paid_seconds(self) -> Seconds:
        """`max_duration` of its Order and Assignments: the longest run and the allowance."""
        return Seconds(self.max_duration + self.fetch_allowance())

    def command(self) -> tuple[str, ...]:
        """Words of the command that runs: argv, or `sh -c` with the shell's command line."""
        return ("/bin/sh", "-c", self.shell) if self.shell else self.argv

    def profile(self) -> Profile:
        """Its determinism profile, with its own counts of threads. Raises Refused(MALFORMED) for an
        unknown name, or a count that is none.
        """
        named = profile_of(self.determinism, needs_gpu=self.resources.gpu is not None)
        return with_threads(named, self.threads())

    def threads(self) -> dict[str, str]:
        return own_threads((item.name, item.value) for item in self.env)

    def environment(self, pinned: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Its variables, the profile's, those of the pool, its counts of threads, the last one
        winning.
        """
        own = {item.name: item.value for item in self.env}
        return {**own, **dict(self.profile().variables), **dict(pinned), **self.threads()}


text_writer.keep(
    JobSpec,
    256,
    # One spec is written into the order's event, its document, the assignment and the receipt.
    # At most 512 texts of SPEC_BYTES_MAX are kept.
)


def decode(data: bytes) -> JobSpec:
    spec = canonical.decode(JobSpec, data, SPEC_BYTES_MAX)
    validate(spec)
    return spec


def image_digest(image: str) -> Hash32:
    """Digest that identifies an image in a determinism class: of its CID, or of the registry."""
    match = _DIGEST_IMAGE.fullmatch(image)
    return Hash32(bytes.fromhex(match[1])) if match else cids.cid_parts(image, "image")[1]


def is_image_cid(image: str) -> bool:
    return "@" not in image


def input_root(spec: JobSpec) -> Hash32:
    """`Order.input_root`: Merkle root over the digests of the input CIDs."""
    return merkle_root(frozenset(cids.cid_parts(item.cid)[1] for item in spec.inputs))


def validate(spec: JobSpec) -> None:
    """Raises `Refused` with the field's name for a spec that no provider may run."""
    _check(spec.version == 1, "version", "it must be 1")
    image_digest(spec.image)
    _check(0 <= spec.image_bytes <= 64 * GIB, "imageBytes", "0 to 64 GiB")
    _check(
        is_image_cid(spec.image) == (spec.image_bytes > 0),
        "imageBytes",
        "the archive's size for a CID, 0 for a registry image",
    )
    _check(
        len(spec.argv) <= ARGV_MAX and not (spec.argv and spec.shell),
        "argv",
        f"at most {ARGV_MAX} words, and not together with shell",
    )
    _check(
        all(_is_text(item) for item in (*spec.argv, spec.shell)),
        "argv",
        f"no NUL, at most {TEXT_MAX} characters each",
    )
    _check(
        spec.working_dir.startswith("/") and _is_text(spec.working_dir),
        "workingDir",
        "an absolute path",
    )
    _check(0 < spec.max_duration <= DURATION_MAX, "maxDuration", f"1 to {DURATION_MAX} s")
    _check(1 <= spec.start_within <= DURATION_MAX, "startWithin", f"1 to {DURATION_MAX} s")
    _check(
        spec.kind is JobKind.TASK or spec.kind.is_rental,
        "kind",
        "it must be task, dev-environment or service; other kinds are not offered yet",
    )
    _check(
        not spec.kind.is_rental or spec.compare == Compare(),
        "compare",
        "a rental has no result to compare; leave it out",
    )
    _check(spec.kind.is_rental or not spec.spot, "spot", "only rentals may be spot; leave it out")
    _validate_rental_network(spec)
    _validate_rental(spec)
    validate_compare(spec.compare)
    _check(
        spec.compare.comparator is Comparator.EXACT
        or spec.resources.output_bytes <= COMPARED_BYTES_MAX,
        "resources.outputBytes",
        f"at most {COMPARED_BYTES_MAX} where results are compared within a tolerance",
    )
    _check(
        spec.sandbox in SANDBOXES, "sandbox", f"one of {', '.join(SANDBOXES[1:])}, or empty for any"
    )
    _check(spec.attestation_level <= ATTESTATION_LEVEL_MAX, "attestationLevel", "0 or 1")
    _validate_env(spec.env)
    check_variables(spec.profile(), ((item.name, item.value) for item in spec.env))
    _validate_inputs(spec.inputs)
    _validate_gateways(spec.gateways)
    _validate_resources(spec.resources)


def _validate_rental_network(spec: JobSpec) -> None:
    for name, is_set in (("egress", bool(spec.egress)), ("sealKey", spec.is_sealed)):
        _check(spec.kind.is_rental or not is_set, name, "only a rental has it; leave it out")
    fault = egress.fault_of(spec.egress)
    _check(not fault, "egress", fault)


def _validate_rental(spec: JobSpec) -> None:
    is_plain = not spec.access and not spec.idle_stop
    name = "access" if spec.access else "idleStop"
    _check(spec.kind.is_rental or is_plain, name, "only a rental has it; leave it out")
    _check(0 <= spec.idle_stop <= DURATION_MAX, "idleStop", f"0 to {DURATION_MAX} s")
    _check(
        len(spec.access) <= ACCESS_MAX and len(set(spec.access)) == len(spec.access),
        "access",
        f"at most {ACCESS_MAX} public keys, none twice",
    )
    for key in spec.access:
        _check(
            is_public_key(key),
            "access",
            f"{key[:40]!r} is no public key of OpenSSH without a comment, such as "
            "ssh-ed25519 AAAA...",
        )


def is_public_key(line: str) -> bool:
    """Whether it is one public key as OpenSSH writes it: its type, a space, and base64."""
    match = _PUBLIC_KEY.fullmatch(line)
    if match is None or len(line) > PUBLIC_KEY_MAX:
        return False
    try:
        blob = b64decode(match[2], validate=True)
    except ValueError:
        return False
    name = match[1].encode()
    head = len(name).to_bytes(4, "big") + name
    return blob.startswith(head) and len(blob) > len(head)


def validate_compare(compare: Compare) -> None:
    """Raises as `validate` does."""
    _check(
        compare.comparator in COMPARATORS,
        "compare.comparator",
        "exact, numeric or text; others are not offered yet",
    )
    if compare.comparator is Comparator.EXACT:
        _check(
            compare == Compare(),
            "compare",
            "exact compares all files and has no tolerance; leave include and tolerancePpm out",
        )
    _check(
        0 <= compare.tolerance_ppm <= TOLERANCE_PPM_MAX,
        "compare.tolerancePpm",
        f"0 to {TOLERANCE_PPM_MAX} millionths, not {compare.tolerance_ppm}",
    )
    patterns = compare.include
    _check(
        1 <= len(set(patterns)) == len(patterns) <= INCLUDE_MAX
        and all(1 <= len(item) <= PATTERN_MAX and item.isprintable() for item in patterns),
        "compare.include",
        f"1 to {INCLUDE_MAX} patterns, none twice, of 1 to {PATTERN_MAX} printable characters",
    )


def _check(good: bool, field: str, remedy: str) -> None:
    if not good:
        raise Refused(Code.MALFORMED, f"{field}: {remedy}")


def _is_text(text: str) -> bool:
    return len(text) <= TEXT_MAX and "\0" not in text


def _validate_env(env: tuple[EnvVar, ...]) -> None:
    names = [item.name for item in env]
    _check(
        len(env) <= ENV_MAX and names == sorted(set(names)),
        "env",
        f"at most {ENV_MAX}, sorted by name, no name twice",
    )
    for item in env:
        _check(
            _ENV_NAME.fullmatch(item.name) is not None and _is_text(item.value),
            "env",
            f"{item.name[:40]!r} is not a usable name",
        )
        _check(
            not item.name.startswith(RESERVED_ENV),
            "env",
            f"{item.name} is reserved (LD_*, NVIDIA_*, QUORATE_*, DOCKER_*)",
        )


def _validate_inputs(inputs: tuple[Input, ...]) -> None:
    _check(len(inputs) <= INPUTS_MAX, "inputs", f"at most {INPUTS_MAX}")
    mounts = [item.mount for item in inputs]
    for item in inputs:
        cids.cid_parts(item.cid, "inputs.cid")
        parts = item.mount.split("/")
        good = (
            item.mount.startswith("/inputs/")
            and ".." not in parts
            and "" not in parts[1:]
            and "." not in parts
            and _is_text(item.mount)
        )
        _check(good, "inputs.mount", f"{item.mount[:80]!r} must be a plain path below /inputs/")
        _check(0 <= item.size_bytes <= 16 * 1024 * GIB, "inputs.sizeBytes", "0 to 16 TiB")
        if item.source:
            fault = fault_of(item.source)
            _check(not fault, "inputs.source", f"{item.source[:80]!r}: {fault}")
            if not is_folder(item.source):
                check_file(item.cid, "inputs.cid")
        nested = any(
            other != item.mount and (other + "/").startswith(item.mount + "/") for other in mounts
        )
        _check(
            not nested and mounts.count(item.mount) == 1,
            "inputs.mount",
            f"{item.mount[:80]!r} overlaps another mount",
        )


def _validate_gateways(gateways: tuple[str, ...]) -> None:
    _check(
        len(gateways) <= GATEWAYS_MAX and len(set(gateways)) == len(gateways),
        "gateways",
        f"at most {GATEWAYS_MAX}, none twice",
    )
    for url in gateways:
        _check(
            len(url) <= GATEWAY_TEXT_MAX and _GATEWAY.fullmatch(url) is not None,
            "gateways",
            f"{url[:80]!r} must be a plain http or https URL, such as https://gateway.example",
        )


def _validate_resources(resources: Resources) -> None:
    bounds = (
        ("cpuMillis", resources.cpu_millis, 10, 1024_000),
        ("memoryBytes", resources.memory_bytes, 16 * MIB, 4096 * GIB),
        ("shmBytes", resources.shm_bytes, 0, resources.memory_bytes),
        ("scratchBytes", resources.scratch_bytes, 0, 4096 * GIB),
        ("outputBytes", resources.output_bytes, 1, 4096 * GIB),
        ("outputInodes", resources.output_inodes, 1, TREE_ENTRIES_MAX),
        ("pids", resources.pids, 1, 65_536),
    )
    for name, value, low, high in bounds:
        _check(low <= value <= high, f"resources.{name}", f"{low} to {high}, not {value}")
    if resources.gpu is not None:
        _validate_gpu(resources.gpu)


def _validate_gpu(gpu: GpuRequest) -> None:
    _check(1 <= gpu.count <= 64, "resources.gpu.count", "1 to 64")
    _check(
        len(gpu.model) <= GPU_MODEL_MAX and gpu.model.isprintable(),
        "resources.gpu.model",
        f"at most {GPU_MODEL_MAX} printable characters",
    )
    bounds = (
        ("vramBytesMin", gpu.vram_bytes_min, 16 * 1024 * GIB),
        ("computeCapabilityMin", gpu.compute_capability_min, COMPUTE_CAPABILITY_MAX),
        ("cudaMin", gpu.cuda_min, CUDA_MAX),
    )
    for name, value, high in bounds:
        _check(0 <= value <= high, f"resources.gpu.{name}", f"0 to {high}, not {value}")
