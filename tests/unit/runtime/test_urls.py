"""Tests that URLs that people type are checked, and stored without the last slash."""

import pytest

from quorate_protocol.refusals import Refused
from quorate_runtime.http.urls import web_url

EXAMPLE = "http://127.0.0.1:7700"


@pytest.mark.parametrize(
    "text", ["http://a.example", "https://a.example:8443/market/", "http://[::1]:7700"]
)
def test_a_url_is_taken_without_its_last_slash(text: str) -> None:
    assert web_url("--x", text, EXAMPLE) == text.rstrip("/")


WRONG = [
    "foo",
    "foo:80",
    "ftp://a.example",
    "http://",
    "http://:80",
    "http://a:99999",
    "http://[::1",
    "http://a b/",
    "",
]
HOSTILE = ["http://a\x1b]0;x\x07/", "http://" + "a" * 2_000]


@pytest.mark.parametrize("text", [*WRONG, *HOSTILE])
def test_a_wrong_url_is_refused_with_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(Refused, match="--x .*such as http://127.0.0.1:7700"):
        web_url("--x", text, EXAMPLE)
