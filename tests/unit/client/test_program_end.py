"""How the `quorate` script ends by a signal."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from quorate.cli import app, main
def answer(words):
    print("up", flush=True)
    asyncio.run(asyncio.sleep(60))
app.answer, sys.argv = answer, ["quorate", "serve"]
main.main()
"""


def test_a_background_job_that_ignores_ctrl_c_ends_by_sigterm() -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", """trap "" INT; exec "$@" """, "sh", sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in errors
