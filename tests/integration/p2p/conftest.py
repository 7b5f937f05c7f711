"""Every test in this folder needs libp2p, already to be imported."""

from pathlib import Path

import pytest

from support.requirements import missing, require


class Absent(pytest.File):
    """Stands for a module that cannot be imported here. It is skipped, or fails, by name."""

    def collect(self) -> list[pytest.Item]:
        require("libp2p")
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Absent | None:
    return Absent.from_parent(parent, path=module_path) if missing("libp2p") else None
