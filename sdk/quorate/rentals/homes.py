"""The /home of a rental: packed at its end, kept by its CID, and unpacked in the next one."""

from dataclasses import replace
from pathlib import Path

import msgspec

from quorate.base.errors import ProfileError, UsageError
from quorate.job.job import Job
from quorate_runtime.files import write_atomic

HOME_MOUNT = "/inputs/home"
HOME = "/home"
# Not the folder itself: it belongs to the provider, and has its rights. Not every image has gzip.
PACK = f"""set -e
cd {HOME}
touch .quorate-unpacked
set --
for name in * .[!.]* ..?*; do test ! -e "$name" || set -- "$@" "./$name"; done
tar -cf - "$@"
"""
# Files of the new machine win over nothing: /home is empty before. It is unpacked once.
UNPACK = f"""set -e
test ! -e {HOME}/.quorate-unpacked || exit 0
if test -d {HOME_MOUNT}; then cp -R {HOME_MOUNT}/. {HOME}/
else tar -C {HOME} -xf {HOME_MOUNT}; fi
touch {HOME}/.quorate-unpacked
"""
FILE = "homes.json"
FILE_BYTES_MAX = 1 << 20


class KeptHome(msgspec.Struct, frozen=True):
    """A packed /home. Its file is content of the profile's store, which `quorate data` lists."""

    cid: str
    size: int
    path: str


def kept_homes(profile_home: Path) -> dict[str, KeptHome]:
    """By name. Raises ProfileError if the file cannot be read."""
    path = profile_home / FILE
    try:
        return msgspec.json.decode(path.read_bytes()[:FILE_BYTES_MAX], type=dict[str, KeptHome])
    except FileNotFoundError:
        return {}  # not re-raised: none is kept yet
    except (OSError, msgspec.DecodeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}; restore it from a backup") from error


def keep_home(profile_home: Path, name: str, kept: KeptHome) -> None:
    """Remembers the newest one of a name."""
    known = kept_homes(profile_home) | {name: kept}
    write_atomic(profile_home / FILE, msgspec.json.format(msgspec.json.encode(known)), 0o600)


def with_home(job: Job, profile_home: Path) -> Job:
    """Returns the job with its home as an input. Raises UsageError if there is none."""
    return replace(job, home="", inputs={**job.inputs, HOME_MOUNT: _found(job.home, profile_home)})


def _found(home: str | Path, profile_home: Path) -> Path:
    """A kept home goes before a folder of its name, which is `./NAME`."""
    known = kept_homes(profile_home)
    if str(home) in known:
        path = Path(known[str(home)].path)
        if not path.exists():
            raise UsageError(f"home: {path} of {home} is gone; keep it again, or name a folder")
        return path
    given = Path(home).expanduser()
    if given.is_dir():
        return given
    names = ", ".join(sorted(known)) or "none"
    raise UsageError(f"home: {str(home)[:80]!r} is no folder, and kept homes are: {names}")
