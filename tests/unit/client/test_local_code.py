"""Local code becomes inputs: equal files give equal CIDs, and what cannot be sent is named."""

import asyncio
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate.base.errors import UsageError
from quorate.images.image_python import ImagePython, python_of_archive
from quorate.job.job import Job
from quorate.job.jobfile import load_job
from quorate.programs.ignore_rules import default_rules, is_ignored, read_rules
from quorate.programs.preparation import Preparer
from quorate.programs.requirements import platforms
from quorate.programs.staging import stage_folder
from quorate_content.dag.disk_tree import cid_of_path
from support.executors.image_archives import entry, image_entries, tar

METADATA = "Metadata-Version: 2.1\nName: gadget\nVersion: 1.2\n"
Prepare = Callable[..., Job]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A docker archive that says that it has Python 3.12."""
    return write_archive(tmp_path / "image.tar", env=["PYTHON_VERSION=3.12.4"])


def write_archive(path: Path, *names: str, env: list[str] | None = None) -> Path:
    layer = tar([entry(name) for name in names or ("etc/os-release",)])
    path.write_bytes(tar(image_entries([layer], {"Env": env or []})))
    return path


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def prepare(tmp_path: Path, archive: Path, notices: list[str]) -> Prepare:
    """Returns a function that prepares a job with these fields."""
    numbers = iter(range(100))

    async def unknown(_image: str) -> None:
        return None

    def prepared(**fields: object) -> Job:
        staging = tmp_path / f"staging-{next(numbers)}"
        staging.mkdir()
        job = Job(**{"image": archive, "max_price": "1", **fields})  # type: ignore[arg-type]
        return asyncio.run(Preparer(staging, notices.append, unknown).prepare(job))

    return prepared


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ("*.log", "a/b/x.log", True),
        ("*.log\n!keep.log", "a/keep.log", False),
        ("/build", "build", True),
        ("/build", "a/build", False),
        ("out/", "a/out", False),  # a file of that name stays
        ("a/**/z", "a/b/c/z", True),
        ("doc/*.txt", "doc/x/y.txt", False),
        ("x[0-9]?", "x1a", True),
        ("# comment\n\\#x", "#x", True),
        ("", ".env", True),
        ("!.env", ".env", False),
    ],
)
def test_ignore_rules_mean_what_they_mean_in_git(
    tmp_path: Path, rules: str, path: str, expected: bool
) -> None:
    (tmp_path / ".gitignore").write_text(rules)
    found = default_rules() + read_rules(tmp_path, "")
    assert is_ignored(found, path, is_folder=False) is expected


def test_equal_files_give_an_equal_cid_whatever_their_times_modes_and_order(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a_py="1", sub__b_py="2")
    two = write(tmp_path / "two", sub__b_py="2", a_py="1", sub__c_log="x")
    (two / ".quorateignore").write_text("*_log\n")
    (two / "__pycache__").mkdir()
    os.utime(two / "a.py", (1, 1))
    (two / "a.py").chmod(0o755)
    cids = {
        cid_of_path(stage_folder(folder, tmp_path / f"{folder.name}-staged", "workdir").path)
        for folder in (one, two)
    }
    assert len(cids) == 1


def test_a_program_its_arguments_and_its_helpers_become_an_input_and_a_command(
    prepare: Prepare, tmp_path: Path, notices: list[str]
) -> None:
    write(tmp_path / "src", train_py="import helper", helper_py="x = 1")
    files = [tmp_path / "src" / "train.py", tmp_path / "src" / "helper.py"]
    job = prepare(file=files, args=["--lr", "0.1"])
    assert job.command == ("python3", "/inputs/code/train.py", "--lr", "0.1")
    assert sorted(path.name for path in Path(job.inputs["/inputs/code"]).iterdir()) == [
        "helper.py",
        "train.py",
    ]
    assert job.env["PYTHONDONTWRITEBYTECODE"] == "1" and "2 files" in notices[0]


def test_a_working_folder_is_an_input_and_leaves_results_and_image_behind(
    prepare: Prepare, tmp_path: Path, archive: Path
) -> None:
    work = write(tmp_path / "w", train_py="", out__old_txt="x", data__x="1")
    job = prepare(
        workdir=work,
        file=work / "train.py",
        outputs=work / "out",
        env={"PYTHONDONTWRITEBYTECODE": ""},
    )
    assert job.working_dir == "/inputs/workdir" and job.command[1] == "/inputs/workdir/train.py"
    staged = Path(job.inputs["/inputs/workdir"])
    assert sorted(path.name for path in staged.iterdir()) == ["data", "train.py"]
    assert job.env["PYTHONDONTWRITEBYTECODE"] == ""


def test_requirements_are_pinned_and_unpacked_for_the_image_s_python(
    prepare: Prepare, tmp_path: Path, notices: list[str]
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "gadget-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gadget.py", "size = 3\n")
        wheel.writestr("gadget-1.2.data/scripts/gadget", "#!python\n")
        wheel.writestr("gadget-1.2.data/purelib/extra.py", "")
        wheel.writestr("gadget-1.2.dist-info/METADATA", METADATA)
        wheel.writestr("gadget-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("gadget-1.2.dist-info/RECORD", "")
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"--no-index\n--find-links {index}\ngadget>=1\n")
    job = prepare(requirements=wanted, command=["python3", "-c", "import gadget"])
    packages = Path(job.inputs["/inputs/site-packages"])
    assert job.env["PYTHONPATH"] == "/inputs/site-packages"
    assert sorted(path.name for path in packages.iterdir()) == [
        "extra.py",
        "gadget-1.2.dist-info",
        "gadget.py",
    ]
    assert "gadget==1.2" in notices[-1] and "Python 3.12" in notices[-1]
    wanted.write_text(f"--no-index\n--find-links {index}\ngadget>=2\n")
    with pytest.raises(UsageError, match=r"requirements: pip finds no wheels .* gadget>=2"):
        prepare(requirements=wanted)


BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "widget-3.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("widget.py")
        info = "widget-3.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: widget\\nVersion: 3.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
build_editable = build_wheel
"""
BUILD = '[build-system]\nrequires = []\nbuild-backend = "maker"\nbackend-path = ["."]\n'


@pytest.mark.parametrize("line", ["./widget", "-e ./widget", "widget @ file://{folder}/widget"])
def test_a_local_folder_in_requirements_is_built_and_sent(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    widget = write(tmp_path / "widget", maker_py=BACKEND, widget_py="size = 1\n")
    (widget / "pyproject.toml").write_text(BUILD)
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("--no-index\n" + line.format(folder=tmp_path) + "\n")
    monkeypatch.chdir(tmp_path)
    job = prepare(requirements=wanted, command=["python3", "-c", "import widget"])
    assert (Path(job.inputs["/inputs/site-packages"]) / "widget.py").is_file()


def test_requirements_that_give_nothing_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("gadget; python_version < '3'\n")
    with pytest.raises(UsageError, match="gadget; python_version .* gives no package"):
        prepare(requirements=wanted, command=["x"])


@pytest.mark.parametrize(
    ("names", "env", "expected"),
    [
        (["usr/bin/python3.11", "usr/bin/python3"], [], "3.11"),
        (["opt/conda/bin/python3.10", "opt/conda/bin/python3"], ["PATH=/opt/conda/bin"], "3.10"),
        (["opt/conda/bin/python3.10", "opt/conda/bin/python3"], [], None),
        (["bin/busybox"], [], None),
    ],
)
def test_the_python_of_an_archive_is_found_on_its_path(
    tmp_path: Path, names: list[str], env: list[str], expected: str | None
) -> None:
    found = python_of_archive(write_archive(tmp_path / "a.tar", *names, env=env))
    assert (found and found.version) == expected


def test_an_image_with_musl_gets_wheels_for_musl() -> None:
    assert platforms(ImagePython("3.12", is_musl=True))[0] == "musllinux_1_2_x86_64"
    assert "manylinux2014_aarch64" in platforms(ImagePython("3.12", "aarch64"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"file": "nowhere.py"}, "file: nowhere.py does not exist"),
        ({"requirements": Path("nowhere.txt")}, "requirements: nowhere.txt does not exist"),
        ({"workdir": "nowhere"}, "workdir: nowhere is not a folder"),
        ({"file": "x.py", "command": ["y"]}, "command: with file"),
        ({"args": ["y"]}, "args: .*file is missing"),
        ({"python": "3"}, "python: '3'; write a version"),
        ({"file": "here.py", "python": "3.9"}, "has Python 3.12, but the job names 3.9"),
        ({"file": "here.py", "source": "ipfs"}, "source: with ipfs nothing is uploaded"),
        ({"file": ["here.py", "./here.py"]}, "two of the given files are named here.py"),
        ({"file": "here.py", "inputs": {"/inputs/code": "here.py"}}, "/inputs/code is taken"),
        ({"file": "here.py", "image": "bafk" + "a" * 55}, "does not say which Python"),
    ],
)
def test_wrong_local_code_is_named_with_its_field(
    prepare: Prepare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    said: str,
) -> None:
    monkeypatch.chdir(write(tmp_path / "here", here_py=""))
    with pytest.raises(UsageError, match=said):
        prepare(**fields)


def test_an_image_without_python_and_a_link_out_of_the_folder_are_refused(
    prepare: Prepare, tmp_path: Path
) -> None:
    work = write(tmp_path / "w", train_py="")
    bare = write_archive(tmp_path / "bare.tar")
    with pytest.raises(UsageError, match="has no python3 on its PATH"):
        prepare(image=bare, file=work / "train.py")
    (work / "secret").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"secret is a link .*\.quorateignore"):
        prepare(workdir=work, command=["x"])


def test_a_job_file_names_local_code_relative_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "image: python:3.12\nmax_price: 1\nfile: train.py\nargs: [--lr, 1]\nworkdir: .\n"
        'requirements: [numpy]\npython: "3.12"\n'
    )
    job = load_job(path)
    assert job.files() == (tmp_path / "train.py",) and job.workdir == tmp_path
    assert job.args == ("--lr", "1") and job.requirements == ("numpy",)
