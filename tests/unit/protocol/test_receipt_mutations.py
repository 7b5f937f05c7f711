"""A sample of the mutations that tests/bench/receipt.py counts: each is refused, or excluded there
for a stated reason.
"""

import pytest

from bench.receipt import run
from support.markets.receipt_gallery import gallery


@pytest.mark.rule("7.1", "7.12", "7.13")
def test_receipts_that_one_party_changed_and_signed_again_are_refused() -> None:
    found = run(gallery(), 270)
    assert found["accepted"] == 0 and found["missed"] == []
    assert found["mutations"] > 200, "most are refused, and not excluded"  # type: ignore[operator]
