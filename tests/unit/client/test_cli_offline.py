"""Tests commands that need no network, and how quickly the client starts."""

import json
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from quorate.base.exit_codes import MEANING, ExitCode
from quorate.cli.context import Context, from_environment
from quorate.cli.main import main, run_main
from support.cli_prompt import password_file

HEAVY = ("docker", "sqlalchemy", "numpy", "web3", "eth_tester", "libp2p", "vyper")


@pytest.fixture
def password(tmp_path: Path) -> Path:
    return password_file(tmp_path)


def test_every_exit_code_has_a_meaning() -> None:
    assert MEANING.keys() == set(ExitCode)


def test_init_makes_a_profile_once(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--home",
        str(tmp_path / "home"),
        "--password-file",
        str(password),
        "init",
        "--limits",
        "devnet",
        "--json",
    ]
    assert run_main(words) == ExitCode.OK
    account = json.loads(capsys.readouterr().out)["account"]
    assert account.startswith("0x") and len(account) == 42
    assert run_main(words) == ExitCode.NO_PROFILE
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["127.0.0.1:7700", "http://", "http://a:99999", "http://a b", "ftp://a.example"]
)
def test_a_wrong_coordinator_url_is_reported_before_the_passphrase_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert (
        run_main(["--home", str(tmp_path / "home"), "init", "--coordinator", url]) == ExitCode.USAGE
    )
    said = capsys.readouterr().err
    assert "--coordinator" in said and "such as http://127.0.0.1:7700" in said
    assert not (tmp_path / "home").exists()


def test_a_wrong_url_in_client_json_is_reported_with_its_file(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(tmp_path / "home"), "--password-file", str(password)]
    assert run_main([*words, "init", "--limits", "devnet"]) == ExitCode.OK
    settings = tmp_path / "home" / "client.json"
    settings.write_text(settings.read_text().replace("http://", "http:/"))
    assert run_main([*words, "ps"]) == ExitCode.NO_PROFILE
    assert f"{settings}: coordinator 'http:/127.0.0.1:7700'" in capsys.readouterr().err


def test_a_passphrase_is_asked_for_once_the_terminal_hides_what_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who types at once, as a paste does, shows nothing and loses nothing."""
    asked: list[str] = []
    typed = iter(["", "one", "two", "three", "three"])

    def hidden(prompt: str) -> str:
        assert capsys.readouterr().out == "", "nothing is shown before"
        asked.append(prompt)
        return next(typed)

    monkeypatch.setattr("getpass.getpass", hidden)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    context = Context(home=tmp_path)
    assert context.passphrase("New passphrase", is_new=True) == "three"
    question, again = "New passphrase: ", "Repeat for confirmation: "
    assert asked == [question, question, again, question, again]


def test_a_wrong_passphrase_and_a_missing_profile_have_their_exit_code(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home"), "--password-file", str(password)]
    assert run_main([*home, "ps"]) == ExitCode.NO_PROFILE
    remedy = (
        f"`quorate --home {tmp_path / 'home'} --password-file {password} init --coordinator URL`"
    )
    assert remedy in capsys.readouterr().err
    assert run_main([*home, "init", "--limits", "devnet"]) == ExitCode.OK
    password.write_text("other\n")
    assert run_main([*home, "unlock"]) == ExitCode.NO_PROFILE
    assert "passphrase" in capsys.readouterr().err


def test_a_readable_password_file_is_refused(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password.chmod(0o644)
    words = ["--home", str(tmp_path), "--password-file", str(password), "init"]
    assert run_main([*words, "--limits", "devnet"]) == ExitCode.NO_PROFILE
    assert "chmod 600" in capsys.readouterr().err


def test_validate_names_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"image: python@sha256:{'0' * 64}\nmax_price: 0.5\ncommand: [python]\n")
    assert run_main(["validate", "-f", str(path), "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["valid"] is True
    path.write_text("image: python\nmax_price: 0.5\n")
    assert run_main(["validate", "-f", str(path), "--json"]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert "name@sha256" in err and json.loads(out)["exitCode"] == ExitCode.USAGE


def test_the_file_of_a_service_is_validated_with_its_canary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, image = tmp_path / "chat.yaml", f"python@sha256:{'0' * 64}"
    text = f'type: service\nimage: {image}\ncommand: [serve]\nmax_price: "0.5"\nservice: '
    path.write_text(text + "{canary: {share: 10%, command: [serve, --new]}}\n")
    assert run_main(["validate", "-f", str(path)]) == ExitCode.OK
    assert "chat.yaml: valid; spec" in capsys.readouterr().out
    for wrong, said in (
        ("{prot: 1}", "service.prot"),
        ("{canary: {share: 10%, image: x}}", "image"),
    ):
        path.write_text(text + wrong)
        assert run_main(["validate", "-f", str(path)]) == ExitCode.USAGE
        assert said in capsys.readouterr().err
    path.write_text(f"image: {image}\ncommand: [serve]\nmax_price: 1\nservice: {{}}\n")
    assert run_main(["validate", "-f", str(path)]) == ExitCode.USAGE
    assert "`type: service`" in capsys.readouterr().err


def test_an_unusable_local_image_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client sends nothing, so the answer has no refusal code and no sentence of the
    coordinator.
    """
    folder, text = tmp_path / "folder.tar", tmp_path / "text.tar"
    folder.mkdir()
    text.write_text("# a readme\n" * 100)
    for image, said in (
        (folder, f"image: {folder} is a folder"),
        (text, f"image: {text} is not a usable docker archive"),
    ):
        path = tmp_path / "job.yaml"
        path.write_text(f"image: {image}\nmax_price: 0.5\ncommand: [python]\n")
        assert run_main(["validate", "-f", str(path)]) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert said in error and "quorate image build --python" in error
        assert "The message cannot be read" not in error


def test_a_missing_package_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "image",
        "build",
        "--python",
        "--with",
        "no-such-package-here",
        "-o",
        str(tmp_path / "image.tar"),
    ]
    assert run_main(words) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "'no-such-package-here' is not installed" in error and "pip install" in error
    assert "It is not known here" not in error


def test_wrong_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", "--frobnicate"]) == ExitCode.USAGE
    assert run_main(["no-such-command"]) == ExitCode.USAGE
    capsys.readouterr()


def test_two_profiles_at_once_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once `--home` was ignored, and the devnet's client paid."""
    assert run_main(["--home", str(tmp_path), "--devnet", "devnet.json", "ps"]) == ExitCode.USAGE
    assert "give only one of them" in capsys.readouterr().err
    assert run_main(["--home", str(tmp_path), "--client", "client-1", "ps"]) == ExitCode.USAGE
    assert "--devnet" in capsys.readouterr().err


def test_suggested_commands_repeat_the_profile_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_PASSWORD_FILE", "secret")
    assert (
        from_environment(Path("my home"), None, "", None).command("ps")
        == "quorate --home 'my home' ps"
    )
    typed = from_environment(None, Path("d.json"), "b", Path("pw")).command("ps")
    assert typed == "quorate --devnet d.json --client b --password-file pw ps"
    monkeypatch.setenv("QUORATE_DEVNET", "d.json")
    assert from_environment(None, None, "", None).command("ps") == "quorate ps"


def test_an_empty_input_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Once `-i data=$UNSET` uploaded the whole working directory."""
    words = ["run", f"python@sha256:{'0' * 64}", "--max-price", "1", "-i", "data=", "--", "true"]
    assert run_main(words) == ExitCode.USAGE
    assert "'data=' has no value" in capsys.readouterr().err


def test_an_interrupt_while_packages_load_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt(MetaPathFinder):
        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            if fullname == "quorate.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "quorate.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    assert run_main(["ps"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "quorate: interrupted; ordered runs go on\n"


def test_a_bug_does_not_end_like_a_job_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quorate.cli.app.app", lambda **options: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        main(["ps"])
    assert ended.value.code == ExitCode.BUG and "ZeroDivisionError" in capsys.readouterr().err


def test_closed_standard_output_does_not_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run_main(["exit-codes"]) == ExitCode.OK


def test_an_image_is_not_written_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(["image", "build", "--python", "-o", str(tmp_path)]) == ExitCode.USAGE
    assert f"such as {tmp_path / 'hello.tar'}" in capsys.readouterr().err


def test_verify_of_garbage_is_invalid_not_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b"\xff\x00{")
    assert run_main(["verify", str(path)]) == ExitCode.INVALID_EVIDENCE
    assert "form" in capsys.readouterr().out
    assert run_main(["verify", str(tmp_path / "absent")]) == ExitCode.USAGE


def test_help_lists_commands_even_when_other_programs_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(["--help"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert all(name in out for name in ("apply", "verify", "image", "spend"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "node init",
            ("default: a key made here", "default: the owner", "default: $QUORATE_HOME/node"),
        ),
        (
            "coordinator init",
            ("default: the devnet's", "Chain node", "Beacon", "default: host and port"),
        ),
    ],
)
def test_help_shows_defaults(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    told: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_main([*words.split(), "--help"]) == ExitCode.OK
    out = " ".join(capsys.readouterr().out.split())
    assert all(text in out for text in told), out


def test_importing_the_client_is_quick_and_light() -> None:
    script = (
        "import sys, time; t = time.process_time(); import quorate; first = time.process_time() - "
        "t;"
        "import quorate.client.market, quorate.cli.app;"
        f"print(first, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    seconds, loaded = done.stdout.split(" ", 1)
    assert float(seconds) <= 0.5
    assert loaded.strip() == "[]"
