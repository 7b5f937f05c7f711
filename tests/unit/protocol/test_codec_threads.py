"""Threads that meet a type at the same moment read and write it alike."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from msgspec import Struct, defstruct

from quorate_protocol.codec import canonical, text_writer

THREADS, TYPES = 8, 10


@pytest.fixture
def restless() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("omits", [False, True])
def test_a_type_is_built_once_however_many_threads_meet_it(restless: None, omits: bool) -> None:
    """A list that two threads filled together made each later message malformed."""
    fields = [(f"field_{number}", int, number) for number in range(20)]
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(TYPES):
            kind = defstruct(f"Kind{number}", fields, frozen=True, omit_defaults=omits)
            value = kind(*range(1, 21))
            start = Barrier(THREADS)

            def meet(_: int, value: Struct = value, start: Barrier = start) -> Struct:
                start.wait(10)
                return canonical.decode(type(value), text_writer.encode(value), 1 << 16)

            assert all(found == value for found in pool.map(meet, range(THREADS)))
