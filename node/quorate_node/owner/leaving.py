"""Files in the provider's home by which commands tell a daemon, also a later one, what to do."""

from pathlib import Path

from quorate_runtime.files import sync_folder, write_atomic

LEAVING_FILE = "leaving"
WISH_FILE = "wish"
PAUSE, RESUME = "pause", "resume"


def is_leaving(home: Path) -> bool:
    """Then the daemon takes no work and opens no slots."""
    return (home / LEAVING_FILE).exists()


def begin_leaving(home: Path) -> None:
    """Makes this and each later daemon of the home finish its jobs and take no more."""
    write_atomic(home / LEAVING_FILE, b"")


def cancel_leaving(home: Path) -> None:
    """Takes `begin_leaving` back."""
    (home / LEAVING_FILE).unlink(missing_ok=True)
    sync_folder(home)


def put_wish(home: Path, wish: str) -> None:
    """Leaves PAUSE or RESUME for the next start of the daemon."""
    write_atomic(home / WISH_FILE, wish.encode())


def read_wish(home: Path) -> str:
    """Returns PAUSE, RESUME or ""."""
    path = home / WISH_FILE
    text = path.read_text(errors="replace") if path.exists() else ""
    return text if text in (PAUSE, RESUME) else ""


def forget_wish(home: Path) -> None:
    """Removes the wish, because the daemon has journaled it."""
    (home / WISH_FILE).unlink(missing_ok=True)
