"""Python images built from the running environment: deterministic, small, and complete enough to
run.
"""

import sys
import tarfile
from pathlib import Path

import pytest

from quorate.images import build_python_image, read_archive
from quorate_protocol.refusals import Code, Refused
from support.executors.executor_cases import ending, make_executor, python_task, said


def test_equal_environments_give_equal_bytes(tmp_path: Path) -> None:
    first = build_python_image(tmp_path / "a" / "one.tar", ["numpy"])
    second = build_python_image(tmp_path / "two.tar", ["NumPy"])
    assert first.config_digest == second.config_digest
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.archive_bytes < 200_000_000
    assert first.missing == ()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_image_holds_the_expected_files(tmp_path: Path) -> None:
    built = build_python_image(tmp_path / "image.tar", ["numpy"])
    info = read_archive(built.path)
    assert info.config_digest == built.config_digest
    assert info.label("quorate.python") == ".".join(str(part) for part in sys.version_info[:3])
    assert not info.has_shell
    with (
        tarfile.open(built.path) as archive,
        tarfile.open(fileobj=archive.extractfile(info.layers[0])) as layer,
    ):
        members = {member.name: member for member in layer}
    assert list(members) == sorted(members)
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
    assert {member.mode for member in members.values() if member.isfile()} == {0o644, 0o755}
    assert members["tmp"].mode == 0o1777
    unwanted = (
        "__pycache__",
        "/tests/",
        "/test/",
        "tkinter",
        "idlelib",
        "ensurepip",
        ".pyc",
        "site-packages/pip/",
        "bin/sh",
    )
    assert [name for name in members if any(part in name for part in unwanted)] == []
    assert any("site-packages/numpy/__init__.py" in name for name in members)


def test_a_package_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refusal:
        build_python_image(tmp_path / "image.tar", ["no-such-package-anywhere"])
    assert refusal.value.code is Code.UNKNOWN
    with pytest.raises(Refused, match="'numpy==2.1.3': write the name alone"):
        build_python_image(tmp_path / "image.tar", ["numpy==2.1.3"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.docker
async def test_the_image_runs_in_the_hardened_container(tmp_path: Path) -> None:
    """Loads every standard module with a shared library and multiplies matrices in the hardened
    container.
    """
    built = build_python_image(tmp_path / "image.tar", ["numpy"])
    code = (
        "import asyncio, bz2, concurrent.futures, ctypes, decimal, hashlib, lzma, "
        "multiprocessing, sqlite3, ssl, zlib, zoneinfo\n"
        "import numpy as np, pwd, os, subprocess, sys\n"
        "assert pwd.getpwuid(os.getuid()).pw_name == 'nobody'\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(len, "
        "['a']*8)) == 8\n"
        "with multiprocessing.get_context('spawn').Pool(2) as pool: assert pool.map(abs, [-1]) == "
        "[1]\n"
        "assert subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, "
        "text=True).stdout == '5\\n'\n"
        "product = np.arange(10_000.0).reshape(100, 100); np.save('/outputs/product.npy', product "
        "@ product)\n"
    )
    task = python_task(built.path, code)
    async with ending(make_executor("docker-runc", tmp_path), "docker-runc", tmp_path) as executor:
        await said(executor, task)
        await executor.collect(task.lease_id, tmp_path / "collected")
        assert (tmp_path / "collected" / "product.npy").stat().st_size == 80_128


@pytest.mark.docker
async def test_an_image_with_a_shell_runs_its_programs(tmp_path: Path) -> None:
    first = build_python_image(tmp_path / "image.tar", ["pip"], has_shell=True)
    second = build_python_image(tmp_path / "again.tar", ["pip"], has_shell=True)
    assert first.config_digest == second.config_digest and read_archive(first.path).has_shell
    script = "cd /tmp && mkdir a && ls | tr a b && tar -czf x a && python3 -m pip --version"
    task = python_task(first.path, "", argv=("/bin/sh", "-c", script))
    async with ending(make_executor("docker-runc", tmp_path), "docker-runc", tmp_path) as executor:
        assert (await said(executor, task)).startswith(b"b\npip ")
