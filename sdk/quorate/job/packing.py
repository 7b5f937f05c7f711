"""Turns a `Job` into a `JobSpec`: computes CIDs of local files, checks the image, lists uploads.
Call it in a thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.quantities import parse_size
from quorate.job.source_names import is_source
from quorate_content.dag.cid import typed_cid
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import build_path
from quorate_content.dag.unixfs import V1_2025
from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo, refuse_shell_command
from quorate_protocol.codec import cids
from quorate_protocol.messages import job_spec as jobs
from quorate_protocol.messages.job_spec import Input, JobSpec
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import ZERO_HASH, JobKind
from quorate_protocol.values import replace as struct_replace

# Size bound of an input given by CID if neither job nor store gives one.
CID_INPUT_BYTES = 4 * jobs.GIB
CID_IMAGE_BYTES = 8 * jobs.GIB
V0_TEXT_LENGTH = 46
NO_COMMAND = "image: the image has no command; write one after --, or as command in the job file"
KEPT_MAX = 64  # files whose CID is kept while the program runs


@dataclass(frozen=True, slots=True)
class Upload:
    """One local file or directory and its CID. `size_bytes` of a directory counts its blocks."""

    cid: str
    path: Path
    size_bytes: int
    is_directory: bool


NO_SHELL = (
    "image: it has no shell, so `quorate shell` and `ssh` cannot start anything in it; build it "
    "with `quorate image build --shell`"
)


@dataclass(frozen=True, slots=True)
class NamedCid:
    """A CID that the job names, and its field."""

    field: str
    cid: str

    def warning(self) -> str:
        """Warns the user before signing. It is not an error: a provider may have the content from
        another source.
        """
        form = "./hello.tar" if self.field == "image" else "./name"
        return (
            f"{self.field}: {self.cid} is not in the coordinator's store, and the run fails "
            f"unless a provider has it; give a path instead of the CID ({form})"
        )


@dataclass(frozen=True, slots=True)
class SourcedInput:
    """What a source becomes. `uploads` are the small documents that describe it. `label`, `pinned`
    and `size_bytes` are for people.
    """

    inputs: tuple[Input, ...]
    uploads: tuple[Upload, ...]
    label: str
    pinned: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job's spec with nothing local left in it. `not_stored`: CIDs that the job names and the
    coordinator's store lacks. `sources`: what providers fetch from elsewhere.
    """

    spec: JobSpec
    uploads: tuple[Upload, ...]
    not_stored: tuple[NamedCid, ...] = ()
    sources: tuple[SourcedInput, ...] = ()
    warning: str = ""

    @property
    def upload_bytes(self) -> int:
        return sum(item.size_bytes for item in self.uploads)


def named_cids(job: Job) -> tuple[NamedCid, ...]:
    """Returns the CIDs that the job itself names, each once. The store may know their sizes."""
    named = [
        NamedCid(f"inputs.{mount}", _named_input(mount, value))
        for mount, value in job.inputs.items()
        if not is_path(value) and not is_source(value)
    ]
    if isinstance(job.image, str) and not is_path(job.image):
        # A wrong image is reported before the store is asked for it.
        image, _ = _named_image(job.image, {})
        if jobs.is_image_cid(image):
            named.append(NamedCid("image", image))
    return tuple({item.cid: item for item in named}.values())


def has_given_size(job: Job, cid: str) -> bool:
    given = (job.inputs[mount] for mount in job.input_sizes if mount in job.inputs)
    return any(not is_path(value) and canonical_cid(str(value)) == cid for value in given)


def pack(
    job: Job, sizes: Mapping[str, int], found: Mapping[str, SourcedInput] | None = None
) -> PackedJob:
    """Returns the validated spec and what to upload. `sizes` maps CIDs to known sizes in bytes,
    `found` mounts to what their sources hold. UsageError names the field.
    """
    sources = found or {}
    uploads: dict[str, Upload] = {}
    image, image_bytes = _image(job, sizes, uploads)
    inputs = [
        _input(job, mount, value, sizes, uploads)
        for mount, value in job.inputs.items()
        if not is_source(value)
    ]
    for item in sources.values():
        inputs += item.inputs
        uploads |= {upload.cid: upload for upload in item.uploads}
    stray = sorted(job.input_sizes.keys() - job.inputs.keys())
    if stray:
        raise UsageError(f"input_sizes: {stray[0]} is not the mount of an input")
    spec = JobSpec(
        kind=job.kind(),
        image=image,
        image_bytes=image_bytes,
        argv=job.argv(),
        shell=job.shell(),
        env=job.variables(),
        working_dir=job.working_dir,
        inputs=tuple(sorted(inputs, key=lambda item: item.mount)),
        resources=job.limits(),
        max_duration=job.seconds(),
        compare=job.comparison(),
        sandbox=job.sandbox,
        attestation_level=job.attestation_level(),
        gateways=tuple(job.gateways),
        public=job.public,
        determinism=job.profile(),
        egress=tuple(sorted(job.egress)),
        spot=job.spot,
        seal_key=ZERO_HASH if job.secrets is None else job.secrets.seal_key,
        access=tuple(job.access),
        idle_stop=job.idle_seconds(),
    )
    spec = struct_replace(spec, start_within=job.start_seconds(quotes.fetch_bytes(spec)))
    try:
        jobs.validate(spec)
    except Refused as refused:
        raise UsageError(f"job: {refused.detail}") from refused
    # With source: ipfs the content is in IPFS already, so nothing is sent.
    sent = () if job.source else tuple(uploads.values())
    return PackedJob(spec, sent, sources=tuple(sources.values()), warning=_warning(job))


def _warning(job: Job) -> str:
    if job.kind() is not JobKind.DEV_ENVIRONMENT or not is_path(job.image):
        return ""
    info = _read_archive(*_identity(Path(job.image).expanduser()))
    return "" if info.has_shell else NO_SHELL


def with_element(packed: PackedJob, job: Job) -> PackedJob:
    """Returns the packed job with command and variables of another one.

    Reading an image again for each element of an array would take most of the time. Raises
    UsageError if the spec is not valid.
    """
    spec = struct_replace(packed.spec, argv=job.argv(), shell=job.shell(), env=job.variables())
    try:
        jobs.validate(spec)
    except Refused as refused:
        raise UsageError(f"job: {refused.detail}") from refused
    return replace(packed, spec=spec)


def is_path(value: str | Path) -> bool:
    if is_source(value):
        return False
    return isinstance(value, Path) or value.startswith((".", "/", "~")) or value.endswith(".tar")


def _image(job: Job, sizes: Mapping[str, int], uploads: dict[str, Upload]) -> tuple[str, int]:
    if not is_path(job.image):
        return _named_image(str(job.image), sizes)
    path = Path(job.image).expanduser()
    if path.is_dir():
        raise UsageError(
            f"image: {path} is a folder; give a docker archive (.tar). `quorate image build "
            "--python -o hello.tar` makes one"
        )
    if not path.is_file():
        raise UsageError(
            f"image: {path} does not exist; make it with `quorate image build --python -o "
            f"{path.name}`"
        )
    try:
        info = _read_archive(*_identity(path))
    except Refused as refused:
        remedy = (
            "make one with `docker save -o hello.tar NAME` or `quorate image build --python "
            "-o hello.tar`"
        )
        raise UsageError(
            f"image: {path} is not a usable docker archive ({refused.detail}); {remedy}"
        ) from refused
    try:
        refuse_shell_command(info, ("/bin/sh",) if job.shell() else job.argv())
    except Refused as refused:
        raise UsageError(refused.detail) from refused
    if not (job.has_command or info.entrypoint or info.command):
        raise UsageError(NO_COMMAND)
    item = _measure(path, "image", uploads)
    return item.cid, item.size_bytes


def _named_image(image: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    try:
        image = canonical_cid(image)
        jobs.image_digest(image)
    except Refused as refused:
        remedy = (
            "give name:tag, name@sha256:..., a name that the local engine has, the CID of a docker "
            "archive, or the path of one (.tar)"
        )
        raise UsageError(f"image: {image[:100]!r} is not a valid image name; {remedy}") from refused
    if not jobs.is_image_cid(image):
        return image, 0
    return image, sizes.get(image, CID_IMAGE_BYTES)


def _input(
    job: Job, mount: str, value: str | Path, sizes: Mapping[str, int], uploads: dict[str, Upload]
) -> Input:
    bound = job.input_sizes.get(mount)
    if is_path(value):
        item = _measure(Path(value).expanduser(), f"inputs.{mount}", uploads)
        return Input(item.cid, mount, item.size_bytes)
    cid = _named_input(mount, value)
    size = (
        parse_size(bound, f"inputs.{mount}.size")
        if bound is not None
        else sizes.get(cid, CID_INPUT_BYTES)
    )
    return Input(cid, mount, size)


def _named_input(mount: str, value: str | Path) -> str:
    """Returns the CID of an input. A wrong one is reported before the store is asked for it."""
    try:
        cid = canonical_cid(str(value))
        cids.cid_parts(cid)
    except Refused as refused:
        raise UsageError(
            f"inputs.{mount}: {str(value)[:80]!r} is neither a CID nor a file here; write a "
            "path as ./name"
        ) from refused
    return cid


def canonical_cid(text: str) -> str:
    """Returns the CIDv1 of a CIDv0 (`Qm...`); any other text as it is. Specs hold only CIDv1.

    Raises `Refused(MALFORMED)` for a text that looks like version 0 and is none.
    """
    is_version_0 = len(text) == V0_TEXT_LENGTH and text.startswith("Qm")
    return str(typed_cid(text)) if is_version_0 else text


def _measure(path: Path, field: str, uploads: dict[str, Upload]) -> Upload:
    item = measured(path, field)
    uploads[item.cid] = item
    return item


def measured(path: Path, field: str) -> Upload:
    """Returns a local file or folder with its CID. UsageError names the field."""
    if not path.exists():
        raise UsageError(f"{field}: {path} does not exist")
    try:
        # A folder's own identity does not show a change of what lies in it.
        item = _build(path.resolve()) if path.is_dir() else _build_file(*_identity(path))
    except Refused as refused:
        raise UsageError(f"{field}: {refused.detail}") from refused
    return item


def _build(path: Path) -> Upload:
    built = build_path(path, V1_2025, None, None, Bounds(), follows_links=True)
    is_directory = path.is_dir()
    return Upload(str(built.cid), path, built.tsize if is_directory else built.size, is_directory)


def _identity(path: Path) -> tuple[Path, tuple[int, ...]]:
    """Returns the path and what changes when its bytes do: inode, size and time."""
    real = path.resolve()
    found = real.stat()
    return real, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(KEPT_MAX)
def _build_file(path: Path, _identity: tuple[int, ...]) -> Upload:
    """Hashes a file once. The calls of a function and the runs of a script share one image."""
    return _build(path)


@lru_cache(KEPT_MAX)
def _read_archive(path: Path, _identity: tuple[int, ...]) -> ImageInfo:
    return read_archive(path)
