"""The benchmark of lying owners, in small: an owner whose faults count loses by each lie."""

import pytest

from bench import liars


@pytest.mark.rule("5.119", "5.149")
@pytest.mark.parametrize("share", [1.0, 0.1, 0.01])
def test_a_liar_whose_faults_count_earns_less_than_an_honest_owner(share: float) -> None:
    honest, _ = liars.gain(0.0, True, 0.9, jobs=2_000)
    lying, audits = liars.gain(share, True, 0.9, jobs=2_000)
    assert lying < honest and audits > 0
