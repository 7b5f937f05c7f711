"""What a repository of a hub holds at one revision, by the hub's own API.

Source: https://huggingface.co/docs/hub/api. Large files come with their SHA-256. The small ones
have only a git hash, so they are read here once for each revision.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from quorate.base.errors import UsageError
from quorate.job.source_names import HubName
from quorate.sources.found_files import FoundFile, FoundSource
from quorate.sources.reading import Found, SourceReader
from quorate_content.dag.content_limits import BadSource
from quorate_protocol.codec import canonical

LIST_BYTES_MAX = 64 << 20
READ_BYTES_MAX = 512 << 20  # of all files without a hash together
PARALLEL = 8
GATED = (
    "is private or gated: only rented machines take a token (--hub-token); or download "
    "it, and give its path"
)


def resolve_hub(reader: SourceReader, endpoint: str, name: HubName, field: str) -> FoundSource:
    """Raises UsageError for a repository that providers could not read, or without such files."""
    label = f"hf://{'datasets/' if name.kind == 'datasets' else ''}{name.repo}@{name.revision}"
    asked = f"{endpoint}/api/{name.kind}/{name.repo}/revision/{quote(name.revision, safe='')}"
    try:
        tree = canonical.loads(reader.read(f"{asked}?blobs=true", LIST_BYTES_MAX))
    except BadSource as error:
        if "status 401" in error.detail or "status 403" in error.detail:
            raise UsageError(f"{field}: {label} does not exist, or {GATED}") from error
        if "status 404" in error.detail:
            raise UsageError(f"{field}: {label} does not exist at {endpoint}") from error
        raise
    except ValueError as error:
        raise BadSource(f"{asked} sends no JSON: {error}") from error
    if not isinstance(tree, dict):
        raise BadSource(f"{asked} sends no repository")
    if (tree.get("gated") or tree.get("private")) and not reader.headers_for(asked):
        raise UsageError(f"{field}: {label} {GATED}")
    commit = tree.get("sha")
    if not isinstance(commit, str) or not (commit.isalnum() and len(commit) == 40):
        raise BadSource(f"{asked} names no commit")
    kind = "datasets/" if name.kind == "datasets" else ""
    base = f"{endpoint}/{kind}{name.repo}/resolve/{commit}/"
    rows = [row for row in tree.get("siblings") or () if _is_wanted(row, name)]
    where = f"{endpoint}/{kind}{name.repo}"
    if not rows:
        raise UsageError(f"{field}: {label} has no file that fits; see {where}")
    files = _with_hashes(reader, base, rows, field)
    return FoundSource(label, base, files, f"commit {commit[:12]}", commit)


def _is_wanted(row: Any, name: HubName) -> bool:
    path = row.get("rfilename") if isinstance(row, dict) else None
    if not isinstance(path, str):
        raise BadSource("the hub lists a file without a name")
    last = path.rpartition("/")[2]
    return (not name.path or f"{path}/".startswith(f"{name.path}/")) and (
        not name.include
        or any(fnmatchcase(path, item) or fnmatchcase(last, item) for item in name.include)
    )


def _with_hashes(
    reader: SourceReader, base: str, rows: Sequence[Any], field: str
) -> tuple[FoundFile, ...]:
    def one(row: Any) -> FoundFile:
        path, size, large = str(row["rfilename"]), row.get("size"), row.get("lfs")
        if isinstance(large, dict) and isinstance(large.get("sha256"), str):
            return FoundFile(path, int(large["size"]), bytes.fromhex(large["sha256"]))
        # A commit never changes, so its hash is that of a version.
        found = Found(size if isinstance(size, int) else None, str(row.get("blobId") or "-"), {})
        digest, size_bytes = reader.hashed(base + quote(path), found, field)
        return FoundFile(path, size_bytes, digest)

    total = sum(int(row.get("size") or 0) for row in rows if not row.get("lfs"))
    if total > READ_BYTES_MAX:
        raise UsageError(
            f"{field}: the hub has no SHA-256 for {total >> 20} MiB of it; choose files with "
            "?include=, at most "
            f"{READ_BYTES_MAX >> 20} MiB without one"
        )
    with ThreadPoolExecutor(PARALLEL) as threads:
        return tuple(threads.map(one, rows))
