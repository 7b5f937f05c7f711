"""The process executor protects nothing, as docs/trust.md says."""

from pathlib import Path

from support.executors.executor_cases import make_executor, python_task


async def test_a_plain_process_reads_and_writes_its_owners_files(
    image: Path, tmp_path: Path
) -> None:
    secret, planted = tmp_path / "secret", tmp_path / "planted"
    secret.write_text("of the owner")
    executor = make_executor("process", tmp_path / "provider")
    task = python_task(image, f"open({str(planted)!r}, 'w').write(open({str(secret)!r}).read())")
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    await executor.remove(task.lease_id)
    await executor.close()
    assert planted.read_text() == "of the owner"
