"""Puts an image's ENTRYPOINT before the command's words, as docker does.

The spec has the whole command, and a provider runs exactly its words. So the client adds what the
image says. Images that a job names by digest or CID are not read; their command is run alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quorate.job.job import Job
from quorate.job.packing import is_path
from quorate_content.images.archive_reader import read_archive
from quorate_protocol.refusals import Refused


def asks_image(job: Job) -> bool:
    """Whether the ENTRYPOINT of the job's image matters: words are given, and nothing replaces
    it.
    """
    return job.entrypoint is None and bool(job.argv()) and not job.file


def with_entrypoint(job: Job, of_image: Sequence[str] = ()) -> Job:
    """Returns the job with its whole command, and no `entrypoint` of its own.

    A line for the shell and a program by `file` are run without any ENTRYPOINT.
    """
    words = of_image if job.entrypoint is None else job.entrypoint
    if job.shell() or job.file or (job.entrypoint is None and not job.argv()):
        words = ()
    return replace(job, entrypoint=None, command=(*words, *job.argv()) if words else job.command)


def with_archives_entrypoint(job: Job) -> Job:
    """Like `with_entrypoint`; reads the image if it is an archive on this machine."""
    path = Path(job.image).expanduser() if is_path(job.image) else None
    if path is None or not asks_image(job) or not path.is_file():
        return with_entrypoint(job)
    try:
        return with_entrypoint(job, read_archive(path).entrypoint)
    except Refused:
        return with_entrypoint(job)  # not re-raised: packing says what is wrong with the archive
