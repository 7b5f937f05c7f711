"""Gauges of what the coordinator's files take on the disk, and of what they may take."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from quorate_coordinator.base.config import Config
from quorate_coordinator.storage.archive import RunArchive
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.metrics import add_gauge


def add_disk_gauges(
    registry: CollectorRegistry, config: Config, archive: RunArchive, documents: DocumentFile
) -> None:
    """Adds the gauges of archive and documents to a daemon's registry. Values are bytes."""
    for name, help_text, read in (
        ("documents_bytes", "Own specs and receipts on the disk.", documents.used_bytes),
        ("documents_bytes_max", "What they may take.", lambda: config.documents.bytes_max),
        ("archive_bytes", "Finished runs on the disk.", archive.used_bytes),
        (
            "archive_bytes_max",
            "The archive deletes its oldest runs before their time when it takes more.",
            lambda: config.archive.bytes_max,
        ),
    ):
        add_gauge(registry, f"quorate_{name}", help_text, _or_zero(read))


def _or_zero(count: Callable[[], int]) -> Callable[[], int]:
    """Wraps `count` so that it gives 0 while the file cannot be read. A scrape must not fail, and
    `health` says what is wrong.
    """

    def read() -> int:
        try:
            return count()
        except Unavailable:
            return 0

    return read
