"""Which Quorate this is: the version of the one distribution that all programs come in."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "quorate"


@cache
def version_number() -> str:
    """As pyproject.toml has it; "0" when the packages run from a folder that was never
    installed.
    """
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # not re-raised: a checkout on PYTHONPATH works too
        return "0"


def version_line() -> str:
    """What `--version` prints."""
    return (
        f"{DISTRIBUTION} {version_number()} (Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()})"
    )
