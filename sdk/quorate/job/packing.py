"""A `Job` to a `JobSpec`: local paths become CIDs, the image is looked at, uploads are listed.
Blocks: call it in a thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate.errors import UsageError
from quorate.job.job import Job
from quorate.job.quantities import parse_size
from quorate_content.content_limits import Bounds
from quorate_content.dag.disk_tree import build_path
from quorate_content.dag.unixfs import V1_2025
from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import refuse_shell_command
from quorate_protocol import cids
from quorate_protocol.messages import job_spec as jobs
from quorate_protocol.messages.job_spec import Compare, Input, JobSpec
from quorate_protocol.refusals import Refused
from quorate_protocol.units import JobKind

CID_INPUT_BYTES = (
    4 * jobs.GIB
)  # bound of an input named by CID whose size neither the job nor the store tells
CID_IMAGE_BYTES = 8 * jobs.GIB


@dataclass(frozen=True, slots=True)
class Upload:
    """One local file or directory and its CID. `size_bytes` of a directory counts its blocks."""

    cid: str
    path: Path
    size_bytes: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Named:
    """A CID that a job gives itself, and the field in which it stands."""

    field: str
    cid: str

    def warning(self) -> str:
        """What whoever orders should know before it signs. No refusal: a provider may have it,
        or a source that an Assignment names.
        """
        form = "./hello.tar" if self.field == "image" else "./name"
        return (
            f"{self.field}: {self.cid} is not in the coordinator's store; unless a provider has "
            f"it from elsewhere, the run only waits for"
            f" it until its time is over, without a result. Write its path instead of the CID "
            f"({form}): it is uploaded when you submit"
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """A job with nothing local left in it. `not_stored`: what it names by a CID that the
    coordinator's store does not hold.
    """

    spec: JobSpec
    uploads: tuple[Upload, ...]
    not_stored: tuple[Named, ...] = ()

    @property
    def upload_bytes(self) -> int:
        """Most that would be sent."""
        return sum(item.size_bytes for item in self.uploads)


def cids_named(job: Job) -> tuple[Named, ...]:
    """CIDs that the job names itself, each once: the store may know their sizes."""
    named = [
        Named(f"inputs.{mount}", _named_input(mount, value))
        for mount, value in job.inputs.items()
        if not is_path(value)
    ]
    if isinstance(job.image, str) and not is_path(job.image):
        _named_image(job.image, {})  # whatever is no image is told before the store is asked for it
        if jobs.is_image_cid(job.image):
            named.append(Named("image", job.image))
    return tuple({item.cid: item for item in named}.values())


def pack(job: Job, sizes: Mapping[str, int]) -> Packed:
    """The spec, validated, and what to upload. `sizes` are known sizes of CIDs. UsageError names
    the field.
    """
    uploads: dict[str, Upload] = {}
    image, image_bytes = _image(job, sizes, uploads)
    inputs = tuple(
        _input(job, mount, value, sizes, uploads) for mount, value in sorted(job.inputs.items())
    )
    stray = sorted(job.input_sizes.keys() - job.inputs.keys())
    if stray:
        raise UsageError(f"input_sizes: {stray[0]} is not the mount of an input")
    spec = JobSpec(
        kind=JobKind.TASK,
        name=job.name,
        image=image,
        image_bytes=image_bytes,
        argv=job.argv(),
        shell=job.shell(),
        env=job.variables(),
        working_dir=job.working_dir,
        inputs=inputs,
        resources=job.limits(),
        max_duration=job.seconds(),
        compare=Compare(),
        sandbox=job.sandbox,
    )
    try:
        jobs.validate(spec)
    except Refused as refused:
        raise UsageError(f"job: {refused.detail}") from refused
    return Packed(spec, tuple(uploads.values()))


def is_path(value: str | Path) -> bool:
    """Whether a job names a file of this machine."""
    return isinstance(value, Path) or value.startswith((".", "/", "~")) or value.endswith(".tar")


def _image(job: Job, sizes: Mapping[str, int], uploads: dict[str, Upload]) -> tuple[str, int]:
    if not is_path(job.image):
        return _named_image(str(job.image), sizes)
    path = Path(job.image).expanduser()
    if path.is_dir():
        raise UsageError(
            f"image: {path} is a folder; name a docker archive (.tar): `quorate image build "
            f"--python -o hello.tar` makes one"
        )
    if not path.is_file():
        raise UsageError(
            f"image: {path} is not there; build one with `quorate image build --python -o "
            f"{path.name}`"
        )
    try:
        info = read_archive(path)
    except Refused as refused:
        remedy = (
            "`docker save -o hello.tar NAME` and `quorate image build --python -o hello.tar` "
            "write such a file"
        )
        raise UsageError(
            f"image: {path} is no docker archive that can be used ({refused.detail}); {remedy}"
        ) from refused
    try:
        refuse_shell_command(info, ("/bin/sh",) if job.shell() else job.argv())
    except Refused as refused:
        raise UsageError(refused.detail) from refused
    item = _measure(path, "image", uploads)
    return item.cid, item.size_bytes


def _named_image(image: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    try:
        jobs.image_digest(image)
    except Refused as refused:
        remedy = (
            "name it name:tag (made a digest at submit), name@sha256:..., by the CID of a "
            "docker archive, or by the path of one (.tar)"
        )
        raise UsageError(
            f"image: {image[:100]!r} is no image that stays the same; {remedy}"
        ) from refused
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
    """The CID that an input is; whatever is none is told before the store is asked for it."""
    try:
        cids.cid_parts(str(value))
    except Refused as refused:
        raise UsageError(
            f"inputs.{mount}: {str(value)[:80]!r} is not a CID, nor a file here; write a path as "
            f"./name"
        ) from refused
    return str(value)


def _measure(path: Path, field: str, uploads: dict[str, Upload]) -> Upload:
    if not path.exists():
        raise UsageError(f"{field}: {path} is not there")
    try:
        built = build_path(path.resolve(), V1_2025, None, None, Bounds())
    except Refused as refused:
        raise UsageError(f"{field}: {refused.detail}") from refused
    is_directory = path.is_dir()
    item = Upload(
        str(built.cid), path.resolve(), built.tsize if is_directory else built.size, is_directory
    )
    uploads[item.cid] = item
    return item
