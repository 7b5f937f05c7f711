"""Attacks by the names of outputs, on the client that reads them and on auditors' results."""

from pathlib import Path

import pytest

from quorate_node.executors.base.outputs import CONTROL_CHARACTERS
from quorate_protocol.refusals import Code, Refused
from support.executors.executor_cases import SANDBOXES, VOLUME, ending, make_executor, python_task

LONG_PATHS = """
import os
os.chdir("/outputs")
for _ in range(60):
    os.mkdir(200 * "n")
    os.chdir(200 * "n")
"""


@pytest.mark.rule("3.57")
@pytest.mark.parametrize("kind", [*SANDBOXES, VOLUME])
async def test_no_name_of_an_output_can_control_a_terminal(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        for name in ("x\x9b2J", "x\u2028y"):
            task = python_task(image, f"open('/outputs/' + {name!r}, 'w')")
            await executor.start(task)
            assert (await executor.wait(task.lease_id)).status == 0
            with pytest.raises(Refused, match="control characters") as refusal:
                await executor.collect(task.lease_id, tmp_path / "collected")
            assert refusal.value.code is Code.MALFORMED
            assert not CONTROL_CHARACTERS & set(map(ord, refusal.value.detail))
            await executor.remove(task.lease_id)
    attack(
        name=f"names of outputs that control a terminal ({kind})",
        before="47 of 80 control characters and marks were collected",
        now=f"{len(CONTROL_CHARACTERS)} are refused, by one rule",
        cost="the price of one run",
    )


@pytest.mark.rule("3.57")
@pytest.mark.parametrize("kind", [*SANDBOXES, VOLUME])
async def test_outputs_with_long_paths_are_a_result_in_every_sandbox(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        task = python_task(image, LONG_PATHS)
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        with pytest.raises(Refused, match="^malformed: nnn.*: the path is longer than 2048 bytes"):
            await executor.collect(task.lease_id, tmp_path / "collected")
    attack(
        name=f"outputs in 60 folders with long names ({kind})",
        before="an error of the owner's machine, tried again until commitBy",
        now="the program's exit status and the empty directory",
        cost="the price of one run",
    )
