"""Unpacks one image in a process of its own: `python -m ...unpack_image ARCHIVE TARGET`.

The layers come as JSON on standard input. The answer on standard output is empty, or one JSON
document with the error.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from quorate_content.images.image_info import ImageInfo
from quorate_node.executors.sandbox.rootfs import unpack
from quorate_protocol.refusals import Code, Refused, Unavailable

_NICENESS = 10  # jobs and the daemon go first
_PR_SET_PDEATHSIG = 1
_RETRY_SECONDS = 30.0


def unpack_apart(archive: Path, info: ImageInfo, target: Path) -> None:
    """Unpacks all layers into the new folder `target`, and writes them to the disk. Blocking.

    Raises what `unpack` raises, and Unavailable if the process was killed.
    """
    layers = json.dumps([info.layers, info.diff_ids])
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(archive), str(target)],
        input=layers.encode(),
        capture_output=True,
        check=False,
    )
    answer = json.loads(done.stdout or b"{}")
    if "code" in answer:
        raise Refused(Code(answer["code"]), answer["detail"])
    if "retry" in answer:
        raise Unavailable(answer["detail"], answer["retry"])
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"the image was not unpacked: {last or done.returncode}", _RETRY_SECONDS)


def main(archive: Path, target: Path) -> dict[str, object]:
    """Unpacks the image; returns the error, or an empty document."""
    layers, diff_ids = json.load(sys.stdin)
    info = ImageInfo(
        config_digest="",
        architecture="",
        env=(),
        entrypoint=(),
        command=(),
        user="",
        working_dir="",
        labels=(),
        diff_ids=tuple(diff_ids),
        layers=tuple(layers),
        config_name="",
        has_shell=False,
        has_env=False,
    )
    try:
        unpack(archive, info, target)
    except Refused as refused:
        return {"code": refused.code.value, "detail": refused.detail}
    except Unavailable as failed:
        return {"retry": failed.retry_after, "detail": str(failed)}
    os.sync()  # so that a folder that exists after a power cut is complete
    return {}


if __name__ == "__main__":
    # A daemon that ends takes this process along: the next one unpacks into the same folder.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
