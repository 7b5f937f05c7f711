"""Kept results are those of the very value, and their number is bounded."""

from quorate_protocol.codec.identity_cache import Kept, age_all


def test_results_are_of_the_value_and_not_of_one_that_had_its_place_in_memory() -> None:
    kept: Kept[list[int], int] = Kept(sum, newest=8)
    for number in range(1000):
        value = [number, number]  # freed at once but for what is kept
        assert kept(value) == 2 * number == kept(value)
        assert len(kept) <= 16


def test_what_is_asked_again_is_computed_once_while_it_is_young() -> None:
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


def test_what_nobody_asks_for_any_more_goes_with_time_and_the_rest_stays() -> None:
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
    assert asked == [1, 3] and len(kept) == 2  # of two generations
    assert kept(once) == 3 and asked == [1, 3, 3]
