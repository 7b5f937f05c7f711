"""Attacks by a job that looks for its neighbours and the owner."""

import json
from pathlib import Path

import pytest

from support.executors.executor_cases import SANDBOXES, ending, make_executor, python_task, said

SPY = """
import json, os
words = [word[::-1] for word in os.environ["WORDS"].split(",")]
found, read = set(), 0
def look(path):
    global read
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read(65536).decode("latin1")
    except OSError:
        return
    read += 1
    found.update((path, word) for word in words if word in text)
for top in ("/proc/self", "/proc/1", "/proc", "/sys"):
    for folder, names, files in os.walk(top):
        if top == "/proc":
            names[:] = [name for name in names if not name.isdecimal()]
        names[:] = [name for name in names if name not in ("map_files", "task", "tracing", "fd")]
        for name in files:
            if name not in ("kmsg", "trace_pipe", "pagemap"):
                look(os.path.join(folder, name))
        for name in (*names, *files):
            path = os.path.join(folder, name)
            try:
                found.update((path, word) for word in words if word in os.readlink(path))
            except OSError:
                pass
scores = []
for value in (999, 0, -1000):
    try:
        open("/proc/self/oom_score_adj", "w").write(str(value))
    except OSError:
        pass
    scores.append(int(open("/proc/self/oom_score_adj").read()))
print(json.dumps([sorted(found), read, scores]))
"""


@pytest.mark.rule("11.3")
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_a_job_cannot_read_other_leases_and_the_owners_folders(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    home = tmp_path / "owners-folder"
    (home / "store").mkdir(parents=True)
    (home / "store" / "cid").write_text("x")
    (home / "store" / "folder").mkdir()
    mounts = {"/inputs/a": home / "store" / "cid", "/inputs/b": home / "store" / "folder"}
    async with ending(make_executor(kind, home), kind, home) as executor:
        other = python_task(image, "print('on', flush=True)\nimport time; time.sleep(600)")
        await executor.start(other)
        words = ",".join(word[::-1] for word in (other.lease_id, "owners-folder"))
        spy = python_task(image, SPY, env={"WORDS": words}, mounts=mounts)
        found, read, scores = json.loads((await said(executor, spy)).splitlines()[-1])
        await executor.remove(other.lease_id)
    assert read > 100
    assert found == []
    assert set(scores) == {1000} or kind == "docker-runsc"  # gVisor shows a score of its own
    attack(
        name=f"job looks for other leases and the owner's folders ({kind})",
        before="ids of all leases, paths of the store" if kind != "docker-runsc" else "nothing",
        now=f"{len(found)} of {read} files name one",
        cost="the price of one run",
    )
