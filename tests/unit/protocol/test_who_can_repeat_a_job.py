"""The benchmark of classes, in small: whose jobs can be repeated, and what an update costs."""

from bench import classes
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import recorded


def test_more_owners_can_be_drawn_from_all_pools_that_fit_than_from_one() -> None:
    found = {count: classes.verifiable_share(count, markets=20) for count in (30, 300)}
    for shares in found.values():
        assert 0 < shares["today"] < shares["union"] < 1
        assert shares["pool"] < shares["union"] < shares["union_by_memory"] <= 1
    assert all(found[30][rule] < found[300][rule] for rule in classes.RULES)


def test_a_change_of_hardware_costs_stake_slots_and_a_restart_does_not() -> None:
    eight, four = recorded("eight-h100-sxm"), recorded("four-rtx-4090")
    assert classes.update_cost(eight, eight) == {"transactions": 0, "seconds_off_offer": 0}
    assert classes.update_cost(eight, four)["transactions"] == 8 + 8 + 1
    fewer = replace(eight, devices=eight.devices[:6], paths=())
    assert classes.update_cost(eight, fewer) == {"transactions": 4, "seconds_off_offer": 0}
