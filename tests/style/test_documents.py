"""Checks that the documents' links lead to files, and that the files that they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from style.source import FIXED_FOLDERS, ROOT, fail_with, files_under, relative

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FILE = re.compile(r"`([\w./-]+\.(?:py|vy|md|json|service|Dockerfile|yaml))`")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Files that programs write; no repository has them.
WRITTEN = frozenset(
    {"coordinator.json", "deployment.json", "devnet.json", "node.json", "claims.md", "metrics.json"}
)


def documents() -> list[Path]:
    """All pages for people; docs/claims.md is generated."""
    pages = [*ROOT.glob("*.md"), *files_under(("docs",), ".md")]
    return [page for page in pages if page.name != "claims.md"]


def broken_links(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Relative links of a page to files that do not exist."""
    for found in LINK.finditer(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = found[1]
        if "://" not in target and not (page.parent / target).exists():
            yield f"{relative(page, root)}: {target} does not exist"


def missing_files(page: Path, known: list[str], root: Path = ROOT) -> Iterator[str]:
    """Files that a page names in code spans and that do not exist.

    A name counts from any folder: `core/events.py` is the end of a path.
    """
    for name in FILE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        exists = any(f"/{path}".endswith(f"/{name}") for path in known)
        if not exists and name not in WRITTEN:
            yield f"{relative(page, root)}: no file {name}"


def repository_files() -> list[str]:
    """All files of the fixed folders and of the root, as paths from the root."""
    found = [relative(path) for path in files_under((*FIXED_FOLDERS, "examples"))]
    return [*found, *(path.name for path in ROOT.iterdir() if path.is_file())]


def test_links_lead_somewhere() -> None:
    fail_with([text for page in documents() for text in broken_links(page)])


def test_files_that_documents_name_exist() -> None:
    known = repository_files()
    fail_with([text for page in documents() for text in missing_files(page, known)])


def bounded_tables(page: str) -> set[str]:
    """Tables in the first column below the heading that says what bounds the state."""
    _, _, rest = page.partition("## What bounds the coordinator's state")
    rows, _, _ = rest.partition("Everything that is derived")
    first_cells = [line.split("|")[1] for line in rows.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", " ".join(first_cells)))


def test_every_table_of_the_coordinator_has_a_bound() -> None:
    core = ROOT / "coordinator" / "quorate_coordinator" / "core"
    texts = [path.read_text(encoding="utf-8") for path in core.rglob("*.py")]
    tables = {name for text in texts for name in re.findall(r"self\.(\w+): Table\[", text)}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(tables) > 20 and bounded_tables(page) == tables


def test_the_checks_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](page.md#x) [c](https://x.test) `core/gone.py` `page.md`")
    assert list(broken_links(page, tmp_path)) == ["page.md: gone.md does not exist"]
    assert list(missing_files(page, ["page.md"], tmp_path)) == ["page.md: no file core/gone.py"]
