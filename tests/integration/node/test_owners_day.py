"""Tests what an owner asks every day: market prices, a copied folder, a daemon that is down."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from quorate_node.base.settings import check_not_copied
from quorate_node.cli import control
from quorate_node.cli.status import income_lines
from quorate_node.core.provider_core import ProviderCore
from quorate_node.status.node_gateway import registry_of
from quorate_node.status.pool_market import decline_counts, standing
from quorate_node.status.status import OwnerFacts, Status, status_of, write_status
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Ppm, Signature, Small
from quorate_protocol.values import replace
from quorate_runtime.process.metrics import exposition
from support.cli_prompt import password_file, typed
from support.markets.provider_world import OPERATOR, PROVIDER, make_terms
from support.offers import a_slot, an_offer

DEAD = "http://127.0.0.1:1"


def row(owner: Address, price: int, ppm: int = 1_000_000, level: int = 0) -> OfferView:
    offer = an_offer(owner, 1, 1, [a_slot(Pool("RTX 4090"), 9), a_slot(CPUS, price)])
    view = OfferView(offer, Signature(bytes(65)), 1, 0, 0, is_alive=True)
    levels = (Small(0), Small(level))
    return replace(view, attestation_levels=levels, rank_ppm=(Ppm(1_000_000), Ppm(ppm)))


def test_the_place_of_a_price_counts_reputation_and_only_this_pool() -> None:
    others = [Address(bytes([number]) * 20) for number in range(1, 6)]
    book = [row(owner, 200_000 + 100_000 * place) for place, owner in enumerate(others[:4])]
    book.append(row(others[4], 900_000, ppm=100_000, level=1))
    found = standing([*book, row(PROVIDER, 250_000)], CPUS.id(), PROVIDER)
    assert str(found) == (
        "matching takes yours as number 3; 5 others ask 0.30, 0.40 and 0.50 USD (quartiles), 1 of "
        "them attested"
    )
    alone = standing([row(PROVIDER, 250_000)], CPUS.id(), PROVIDER)
    assert str(alone) == "no other owner is on offer in this pool"
    assert standing(book[:1], CPUS.id(), PROVIDER).quartiles == (200_000,) * 3
    assert decline_counts([{"reason": "busy"}, {"reason": "price"}, {"reason": "price"}]) == (
        "2 price, 1 busy"
    )


def state(facts: OwnerFacts | None = None) -> Status:
    return status_of(ProviderCore(make_terms()), OPERATOR.address, DEAD, {}, facts=facts)


def test_price_without_a_sum_proposes_one_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made(tmp_path)
    before = (home / "node.json").read_bytes()
    code, text = typed("node", "price", "--home", str(home))
    assert code == 4 and "no provider has run in" in text, text
    write_status(home / "status.json", state())

    async def book(*_: object) -> list[OfferView]:
        return [row(Address(bytes([number]) * 20), 300_000) for number in (1, 2, 3)]

    monkeypatch.setattr(control, "offer_books", book)
    code, text = typed("node", "price", "--home", str(home))
    assert code == 0 and "their median: quorate node price 0.30" in text, text
    assert (home / "node.json").read_bytes() == before


def test_status_of_a_daemon_that_is_down_shows_what_it_wrote_last(tmp_path: Path) -> None:
    home = made(tmp_path)
    write_status(home / "status.json", state())
    code, text = typed("node", "status", "--home", str(home))
    assert code == 4 and text.index("the daemon does not run: ") < text.index("not on offer: "), (
        text
    )
    assert "the chain does not answer" in text and "jobs: 0 live, 0 paid" in text


def made(folder: Path) -> Path:
    words = ["--coordinator", DEAD, "--limits", "devnet", "--home", str(folder / "node")]
    secret = ["--password-file", str(password_file(folder))]
    code, text = typed("node", "init", *words, *secret)
    assert code == 0, text
    return folder / "node"


def test_a_copied_folder_is_refused_by_name(tmp_path: Path) -> None:
    home, copy, machine = tmp_path / "home", tmp_path / "copy", tmp_path / "machine-id"
    machine.write_text("one\n")
    home.mkdir()
    for _ in range(2):
        check_not_copied(home, machine)
    shutil.copytree(home, copy)
    with pytest.raises(Refused, match="was copied: two daemons with the same keys"):
        check_not_copied(copy, machine)
    write_status(copy / "status.json", state())
    with pytest.raises(Refused, match="was copied"):
        asyncio.run(control.ask_daemon(copy, "POST", "/v1/pause"))
    machine.write_text("two\n")
    with pytest.raises(Refused, match="lose stake. If the other one never runs again, remove"):
        check_not_copied(home, machine)
    (home / "machine").unlink()
    check_not_copied(home, machine)


def test_earnings_are_shown_after_electricity() -> None:
    day = {"day": "2026-01-31", "earned": "500000", "takenBack": "0", "paid": 1, "unpaid": 0}
    lines = income_lines([{**day, "gpuMillijoules": 7_200_000_000}], 300_000)
    assert lines[1].endswith("1 job; 2.00 kWh cost 0.60 USD, -0.10 USD are left")
    assert income_lines([day])[1].endswith("1 job")


def test_metrics_say_whether_the_owner_wants_work() -> None:
    told = exposition(registry_of(state)).decode()
    assert 'quorate_node_run_slots{state="all"} 1.0' in told and "quorate_node_wanted 1.0" in told
    told = exposition(registry_of(lambda: state(OwnerFacts(closed_until="Mon")))).decode()
    assert "quorate_node_wanted 0.0" in told
    board = json.loads((Path(__file__).parents[3] / "docker/grafana/node.json").read_text())
    shown = {
        item["expr"].split("{")[0].split("(")[-1] for p in board["panels"] for item in p["targets"]
    }
    assert all(name.split(" ")[0] in told for name in shown), shown
