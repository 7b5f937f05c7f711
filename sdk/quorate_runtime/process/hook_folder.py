"""Writes the folder with the import hook of a determinism profile, which executors mount."""

from pathlib import Path

from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.determinism import Profile
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH
from quorate_runtime.files import write_atomic

SOURCE = Path(__file__).with_name("import_hook.py")
FILE = "sitecustomize.py"  # the name that Python's `site` imports at each start


def write_hook(folder: Path, profile: Profile) -> Path | None:
    """Returns the folder, or None for a profile without a hook; may be repeated.

    Raises Refused(UNSUPPORTED) if this installation has another hook than the profile names.
    """
    if profile.hook == ZERO_HASH:
        return None
    data = SOURCE.read_bytes()
    if sha256(data) != profile.hook:
        raise Refused(
            Code.UNSUPPORTED,
            f"determinism: {SOURCE} is not the hook of {profile.name}; install quorate again",
        )
    path = folder / FILE
    if not path.exists() or path.read_bytes() != data:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    # Whatever the umask says: the job's user must read both.
    folder.chmod(0o755)
    path.chmod(0o644)
    return folder
