"""Lets programs see full disks, without filling one."""

import os

import pytest


def fill_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the system answer that no disk has room. What is written is written all the same."""
    real = os.statvfs

    def full(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[3] = found[4] = 0  # free blocks
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
