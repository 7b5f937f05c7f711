"""Coverage-guided fuzzing of one target: `python -m fuzz.guided TARGET RUNS`.

tests/ must be on the path. It ends with one JSON line. atheris (https://github.com/google/atheris)
instruments our packages while they are imported, so nothing of ours may be imported before. An
input that takes more than 10 s or 1 GiB fails like one that raises. Failing inputs are kept in the
folder that is printed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS_MAX, MEBIBYTES_MAX = 10, 1024
LENGTH_MAX = 16 * 1024
PACKAGES = ["quorate_protocol", "quorate_content", "quorate_runtime", "quorate", "quorate_node"]


def fuzz(target: str, arguments: list[str]) -> None:
    """The instrumented process; it ends by itself."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from fuzz.guided_targets import TARGETS, planted

    atheris.Setup([sys.argv[0], *arguments], {**TARGETS, "planted": planted}[target])
    atheris.Fuzz()


def run(target: str, runs: int, seconds: float, seed: int) -> dict[str, object]:
    """{"target", "inputs", "untyped", "kept"} of one campaign in a process of its own."""
    from fuzz.guided_seeds import seeds

    folder = Path(tempfile.mkdtemp(prefix=f"quorate-fuzz-{target}-"))
    (folder / "corpus").mkdir()
    for number, data in enumerate(seeds(target)):
        (folder / "corpus" / f"{number:04}").write_bytes(data)
    arguments = [
        f"-runs={runs}",
        f"-max_total_time={int(seconds)}",
        f"-max_len={LENGTH_MAX}",
        f"-timeout={SECONDS_MAX}",
        f"-seed={seed}",
        f"-rss_limit_mb={MEBIBYTES_MAX}",
        f"-artifact_prefix={folder}/failed-",
        "-print_final_stats=1",
        "-verbosity=0",
        f"{folder}/corpus",
    ]
    command = [sys.executable, "-m", "fuzz.guided", "--inside", target, *arguments]
    # Python's hash seed is fixed, so that the same seed gives the same run.
    path = os.pathsep.join(
        filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    limit = seconds + 120
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        env=environment,
    )
    units = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    failed = sorted(path.name for path in folder.glob("failed-*"))
    if done.returncode and not failed:
        raise SystemExit(f"{target} did not run: {done.stderr[-2000:]}")
    if failed:
        trace = (
            done.stdout[done.stdout.rfind("Traceback") :]
            + done.stderr[done.stderr.rfind("Traceback") :]
        )
        print(f"{target}: {folder}/{failed[0]}\n{trace[-3000:]}", file=sys.stderr)
    return {
        "target": target,
        "inputs": int(units[1]) if units else 0,
        "untyped": len(failed),
        "kept": str(folder) if failed else "",
    }


def main(arguments: list[str]) -> int:
    """The command."""
    if arguments[0] == "--inside":
        fuzz(arguments[1], arguments[2:])
        return 0
    found = run(arguments[0], int(arguments[1]), 600.0, 1)
    print(json.dumps(found))
    return 1 if found["untyped"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
