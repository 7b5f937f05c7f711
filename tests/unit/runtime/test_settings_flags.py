"""One field of a program's settings is flag, environment variable, line of the file and default."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from quorate_node.base.config import Config, Settings
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused
from quorate_runtime.process.settings_flags import (
    Option,
    check_bounds,
    named_fields,
    read_flags,
    with_flags,
    with_named,
)


class More(Settings, frozen=True):
    """The node's settings and one that is made up."""

    naps: Annotated[
        tuple[str, ...],
        Option(
            "Hours of a nap; repeatable",
            "--nap",
            most=2,
            read=lambda texts, flag: tuple(f"{flag} {text}" for text in texts),
            environment="QUORATE_NAPS",
        ),
    ] = ()


app = typer.Typer(add_completion=False)


@app.command()
@with_flags(More)
def init(ctx: typer.Context, file: Path, **typed: object) -> None:
    """Write the settings, or change those in the file."""
    wanted = More(coordinators=(), **read_flags(More, typed))
    if file.exists():
        kept = canonical.decode(More, file.read_bytes())
        wanted = with_named(kept, wanted, named_fields(ctx, More))
    check_bounds(wanted)
    file.write_bytes(canonical.encode(wanted))


def run(file: Path, *words: str, env: dict[str, str] | None = None) -> More:
    done = CliRunner().invoke(app, [str(file), *words], env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return canonical.decode(More, file.read_bytes())


def test_a_new_setting_is_a_flag_a_variable_and_a_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    assert run(file).naps == ()
    assert run(file, "--nap", "12", "--nap", "1").naps == ("--nap 12", "--nap 1")
    assert b'"naps":["--nap 12","--nap 1"]' in file.read_bytes()
    assert run(file, env={"QUORATE_NAPS": "3"}).naps == ("--nap 3",)
    kept = run(file, "--price", "0.40", "--rpc", "http://a", "--rpc", "http://b")
    assert (kept.price, kept.naps) == (400_000, ("--nap 3",))
    assert (kept.chain_url, kept.second_chain_url) == ("http://a", "http://b")


def test_a_value_out_of_its_bounds_is_refused_by_the_name_of_its_field(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="naps: 3 is not between 0 and 2"):
        run(tmp_path / "file", *("--nap", "1") * 3)


def test_the_help_shows_a_new_setting_with_the_others() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "--nap" in shown and "Hours of a nap" in shown and "--fee-cap-gwei" in shown


def test_the_daemon_is_configured_with_all_settings(tmp_path: Path) -> None:
    settings = Settings(coordinators=("http://a",), region="eu", store_bytes=1)
    config = Config.of(settings, tmp_path, listen_port=0)
    differing = {
        name
        for name in Settings.__struct_fields__
        if getattr(config, name) != getattr(settings, name)
    }
    assert differing == {"listen_port"}
