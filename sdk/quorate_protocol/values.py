"""`replace`: makes a changed copy of a frozen value, a `msgspec.Struct`.

msgspec types the changes as `Any`. mypy checks the field names and types of `dataclasses.replace`,
and takes a Struct for a dataclass. So mypy sees that function here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = ["replace"]
