"""Tests a cache by object identity: a kept result belongs to that very value, and the number of
results is bounded.
"""

from quorate_protocol.codec.identity_cache import Kept, age_all


def test_a_result_is_never_given_for_another_value_at_the_same_memory_address() -> None:
    kept: Kept[list[int], int] = Kept(sum, newest=8)
    for number in range(1000):
        value = [number, number]  # would be freed at once if the cache did not hold it
        assert kept(value) == 2 * number == kept(value)
        assert len(kept) <= 16


def test_a_result_that_is_asked_again_soon_is_computed_once() -> None:
    asked: list[object] = []

    def compute(value: tuple[int, ...]) -> int:
        asked.append(value)
        return len(asked)

    kept: Kept[tuple[int, ...], int] = Kept(compute, newest=4)
    often = (1, 2)
    for number in range(20):
        kept(often)
        kept((number, number))
    assert asked.count(often) == 1


def test_unused_results_are_dropped_with_time_and_used_ones_stay() -> None:
    asked: list[int] = []

    def compute(value: tuple[int, ...]) -> int:
        asked.append(value[0])
        return value[0]

    kept: Kept[tuple[int, ...], int] = Kept(compute, newest=1000)
    often, once = (1, 2), (3, 4)
    kept(often), kept(once)
    for _ in range(3):
        age_all()
        kept(often)
    assert asked == [1, 3] and len(kept) == 2  # results of two generations
    assert kept(once) == 3 and asked == [1, 3, 3]
