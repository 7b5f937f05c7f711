"""`quorate coordinator backup|restore`: the second place of the coordinator's files."""

import json
import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.coordinator_keys import account_of
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of
from quorate_coordinator.storage.restoring import check_place
from quorate_coordinator.storage.restoring import restore as restored
from quorate_coordinator.storage.second_place import Owner, copy_once, make_place
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.values import replace
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE

OFF = "off"
Place = Annotated[
    str, typer.Argument(help="Folder on another disk or machine, also as file:///...; or off")
]
Source = Annotated[str, typer.Argument(help="Folder of the second place, also as file:///...")]
Check = Annotated[
    bool, typer.Option("--check", help="Read and check all of it, and write nothing (a drill)")
]


def backup(place: Place, home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Copy the coordinator's files to a second place now, and from the next `up` on as they
    grow.
    """
    folder = home_of(home)
    try:
        settings = settings_file.read(folder)
        if place == OFF:
            settings_file.write(folder, replace(settings, backup=""))
            _say(as_json, {"backup": ""}, "nothing is copied from the next `up` on")
            return
        target = _folder(place)
        owner = Owner.of(account_of(folder / "keys"), settings.deployment)
        make_place(target, folder, owner)
        settings_file.write(folder, replace(settings, backup=str(target)))
        if not (folder / "journal").exists():
            told = f"{target} is empty yet: the next `up` copies to it"
            _say(as_json, {"backup": str(target), "offset": 0, "copiedAt": 0}, told)
            return
        marker = copy_once(folder, target, owner, int(time.time()))
    except Refused as refused:
        raise fail(refused.detail, EXIT_REFUSED, refused.code) from refused
    except OSError as error:
        raise fail(f"{error.filename or place}: {error.strerror}", EXIT_REFUSED) from error
    except Unavailable as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    told = f"{target} has all up to event {marker.offset}; a coordinator that runs now copies on"
    facts = {"backup": str(target), "offset": marker.offset, "copiedAt": marker.copied_at}
    _say(as_json, facts, f"{told} after its next start")


def restore(
    place: Source, home: options.Home = None, check: Check = False, as_json: options.AsJson = False
) -> None:
    """Make a new folder of a second place. With --check: only read it, and say what it holds."""

    folder = home_of(home)
    try:
        source = _folder(place)
        found = check_place(source) if check else restored(source, folder)
    except Refused as refused:
        raise fail(refused.detail, EXIT_REFUSED, refused.code) from refused
    except JournalError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    except OSError as error:
        raise fail(f"{error.filename or place}: {error.strerror}", EXIT_REFUSED) from error
    except Unavailable as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    facts = {
        "copiedAt": found.marker.copied_at,
        "offset": found.offset,
        "pendingEffects": found.pending,
        "archivedRuns": found.runs,
        "home": "" if check else str(folder),
    }
    date = datetime.fromtimestamp(found.marker.copied_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    told = (
        f"{source} has all that was durable at {date}: {found.offset} events, {found.runs} runs of "
        f"{found.marker.owner}. What was signed later is lost with the old files"
    )
    if not check:
        command = f"quorate coordinator up --home {shlex.quote(str(folder))}"
        told += f". Start it once the old one can never run again: {command}"
    _say(as_json, facts, told)


def _folder(text: str) -> Path:
    if "://" in text and not text.startswith("file:///"):
        told = f"{text}: only folders can be a second place; mount it, and name the folder"
        raise fail(told, EXIT_USAGE)
    return Path(text.removeprefix("file://")).absolute()


def _say(as_json: bool, facts: dict[str, object], sentence: str) -> None:
    typer.echo(json.dumps(facts) if as_json else f"coordinator: {sentence}")
