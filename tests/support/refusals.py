"""The assertion that something is refused with one code."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quorate_protocol.refusals import Code, Refused


@contextmanager
def refuses(code: Code, match: str | None = None) -> Iterator[None]:
    """Asserts that the block is refused with this code, in words that `match` is found in."""
    with pytest.raises(Refused, match=match) as caught:
        yield
    assert caught.value.code is code
