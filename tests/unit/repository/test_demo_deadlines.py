"""The demo's deadlines: each new stage gets more time up to a bound, and a stuck stage fails."""

from quorate_devnet.demo.run_demo import DEADLINE_SECONDS, PATIENCE_SECONDS, StageDeadline


def test_a_stuck_demo_ends_and_names_its_stage() -> None:
    stage = StageDeadline(1000.0)
    assert stage.limit == 1000.0 + PATIENCE_SECONDS
    limit = stage.reach("2 of 6 runs have a verdict", 1040.0)
    assert limit == 1040.0 + PATIENCE_SECONDS
    assert stage.reach("2 of 6 runs have a verdict", 1100.0) == limit, "the same again is no move"
    assert stage.name == "2 of 6 runs have a verdict"


def test_a_slow_demo_gets_more_time_up_to_a_bound() -> None:
    stage, now, patience = StageDeadline(0.0), 0.0, PATIENCE_SECONDS - 1
    while now < stage.limit:
        limit = stage.reach(f"step at {now:g}", now)
        now = min(now + patience, limit)
    assert now == DEADLINE_SECONDS > 3 * PATIENCE_SECONDS
