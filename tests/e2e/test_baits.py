"""A client that orders what no owner can run hurts neither honest clients nor owners."""

from pathlib import Path

from bench.baits import measure


async def test_baits_of_one_client_take_no_owner_off_offer(tmp_path: Path) -> None:
    figures = await measure(tmp_path, each=3, seconds=10.0)
    assert figures["honest_results"] and not figures["honest_failed"], figures
    assert figures["honest_refused"] == figures["owners_off_offer"] == 0, figures
