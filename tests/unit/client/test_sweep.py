"""A sweep gives every combination once, in order, and its budget is shared."""

import pytest

from quorate.base.errors import UsageError
from quorate.cli.job_flags import parse_sweeps
from quorate.job.job import Job
from quorate.job.sweep import element_job, elements, label


def a_job(**fields: object) -> Job:
    return Job(**{"image": "python:3.12", "max_price": "1", "name": "train", **fields})  # type: ignore[arg-type]


def test_elements_are_all_combinations_in_order() -> None:
    found = elements(parse_sweeps(["lr=0.1,0.01", "layers=2,3"]), 2)
    assert len(found) == 8
    assert found[0] == {"lr": "0.1", "layers": "2", "seed": "0"}
    assert found[1] == {"lr": "0.1", "layers": "2", "seed": "1"}
    assert label(found[-1]) == "lr=0.01,layers=3,seed=1"


def test_an_element_fills_words_sets_variables_and_gets_its_part_of_the_budget() -> None:
    job = a_job(
        command=["train", "--lr={lr}", "is-{unknown}", "{lr}"], sweep={"lr": [1, 2]}, budget=1
    )
    (first, second) = (element_job(job, one, 2) for one in elements(job.sweep, job.seeds))
    assert first.command == ("train", "--lr=1", "is-{unknown}", "1") and first.env == {"lr": "1"}
    assert (first.name, second.name) == ("train-lr-1", "train-lr-2")
    assert first.budget_amount() == 500_000 and not first.is_array


def test_long_values_give_short_names_that_differ() -> None:
    names = {element_job(a_job(), {"text": "x" * 80 + end}, 2).name for end in ("a", "b")}
    assert len(names) == 2 and all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sweep": {"l r": [1]}}, "sweep: 'l r' cannot name a variable"),
        ({"sweep": {"lr": []}}, "sweep.lr: write a list"),
        ({"sweep": {"lr": [1, "1"]}}, "sweep.lr: write a list of different values"),
        ({"sweep": {"lr": [1]}, "env": {"lr": "2"}}, "sweep: lr is set twice"),
        ({"sweep": {"seed": [1]}, "seeds": 2}, "sweep: seed is set twice"),
        ({"seeds": -1}, "seeds: '-1' is not a number"),
        ({"sweep": {"a": range(200), "b": range(200)}}, "40000 elements; at most 10000"),
    ],
)
def test_a_wrong_sweep_is_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        a_job(**fields)


@pytest.mark.parametrize("given", [["lr"], ["=1"], ["lr="], ["lr=1", "lr=2"]])
def test_a_wrong_sweep_option_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError, match="--sweep"):
        parse_sweeps(given)


def test_an_unknown_key_in_braces_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"\{lrr\} is no key of it; did you mean \{lr\}"):
        element_job(a_job(command=["{lrr}"]), {"lr": "1"})


@pytest.mark.parametrize("word", ["{lx}", "--lr={lx}"])
def test_a_word_in_braces_that_is_no_key_is_refused_with_the_nearest(word: str) -> None:
    job = Job(image="python:3.12", max_price="1", command=("train", word))
    with pytest.raises(UsageError, match=r"\{lx\} is no key of it; did you mean \{lr\}"):
        element_job(job, {"lr": "1", "seed": "0"})
    code = Job(image="python:3.12", max_price="1", command=("python", "-c", "print(f'{lx}')"))
    assert element_job(code, {"lr": "1"}).command[2] == "print(f'{lx}')"


def test_a_whole_word_in_braces_far_from_all_keys_is_refused_with_the_keys() -> None:
    job = Job(image="python:3.12", max_price="1", command=("train", "--x={z}"))
    with pytest.raises(UsageError, match=r"\{z\} is no key of it; its keys: lr, seed"):
        element_job(job, {"lr": "1", "seed": "0"})
