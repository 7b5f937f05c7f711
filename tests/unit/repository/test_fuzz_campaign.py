"""Tests that a fuzzing campaign that tried too little fails and names what it left out."""

from fuzz.api_parties import WHO
from fuzz.campaign import ROUTES, by_who, missed
from quorate_coordinator.api.handlers import OPERATIONS


def test_untried_inputs_are_named() -> None:
    assert len(OPERATIONS) == ROUTES
    full = {"codec_inputs": 20_000, "routes": dict.fromkeys(WHO, ROUTES)}
    assert missed(full, 10) == missed(full, 50) == []
    assert missed({**full, "codec_inputs": 19_999}, 10) == ["codec inputs: 19999 of 20000"]
    assert missed({**full, "codec_inputs": 2_000}, 1) == []
    fewer = {**full, "routes": {**dict.fromkeys(WHO, ROUTES), "provider": ROUTES - 1}}
    assert missed(fewer, 1) == [f"routes asked as provider: {ROUTES - 1} of {ROUTES}"]
    assert len(missed({"codec_inputs": 0, "routes": {}}, 10)) == 1 + len(WHO)


def test_requests_are_counted_by_role() -> None:
    counts = {"requests as client": 3, "requests as nobody": 1, "frames": 7}
    assert by_who(counts, "requests") == {"client": 3, "nobody": 1}
    assert counts == {"frames": 7}
