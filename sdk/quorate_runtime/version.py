"""The version of Quorate. All programs come in one distribution, so they share it."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "quorate"


@cache
def version_number() -> str:
    """Returns the version from pyproject.toml, or "0" if the packages are not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # a checkout on PYTHONPATH works as well
        return "0"


def version_line() -> str:
    return (
        f"{DISTRIBUTION} {version_number()} (Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()})"
    )
