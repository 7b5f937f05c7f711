"""Tests the owner's commands, prices, pools, and the list of what is missing on chain. No
network is used.
"""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate_contracts.money_texts import Currency
from quorate_node.base import settings
from quorate_node.base.config import Config, ExecutorKind, RentalTerms, cpu_level_of
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.app import app
from quorate_node.cli.status import lease_line, slot_line
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import RunSlots
from quorate_node.executors.selection import choose
from quorate_node.machine.host_probe import (
    V2_FLAGS,
    V3_FLAGS,
    V4_FLAGS,
    CpuInfo,
    cpu_host,
    read_cpuinfo,
)
from quorate_node.owner import leaving
from quorate_node.owner.registration import RegistrationState, missing, network_of, network_url
from quorate_node.status.diagnostics import check_node, rentals_result
from quorate_node.status.node_gateway import control_token
from quorate_node.status.status import read_status, status_of, write_status
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Host, Pool
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32, Price, Small
from quorate_protocol.values import replace
from quorate_runtime.keys import key_agent
from quorate_runtime.keys.crypto import PeerKey
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE
from support.cli_prompt import password_file, typed
from support.markets.gpu_provider import PAIR, assign, gpu_driver, gpu_slots, gpu_spec
from support.markets.provider_world import OPERATOR, PROVIDER, STRANGER, make_terms
from support.offers import a_slot
from support.virtual_clock import VirtualClock

URL = "http://127.0.0.1:7700"
SECRET = Hash32(b"\x01" * 32)


def run(home: Path, line: str) -> tuple[int, str]:
    """Runs a command with --home; returns its exit code and output."""
    result = CliRunner().invoke(app, [*shlex.split(line), "--home", str(home)])
    return result.exit_code, result.stdout


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """The flag of a password file."""
    return f"--password-file {password_file(tmp_path)}"


@pytest.fixture
def init(secret: str) -> str:
    """The command that makes a provider."""
    return f"init --coordinator {URL} --limits devnet {secret}"


def test_second_init_keeps_the_keys(tmp_path: Path, secret: str) -> None:
    """A lost key means lost money."""
    nodes = "--rpc http://127.0.0.1:9999/ --rpc http://127.0.0.1:9998"
    market = f"--coordinator {URL}/ --limits devnet --store-size 50GiB {nodes}"
    words = f"init {market} --slots 2 --price 0.25 {secret} --json"
    code, text = run(tmp_path / "node", words)
    facts = json.loads(text)
    assert code == 0 and facts["stake"] == 200_000_000 and facts["has_owner_key"]
    assert json.loads(run(tmp_path / "node", words)[1]) == facts
    stored = settings.read(tmp_path / "node")
    assert stored.coordinators == (URL,)
    assert stored.price == 250_000 and stored.owner == ZERO_ADDRESS
    config = Config.of(
        stored, tmp_path, executor=ExecutorKind.NOOP, listen_port=0, stop_on_exit=True
    )
    assert (config.executor, config.listen_port) == (ExecutorKind.NOOP, 0)
    assert config.stop_on_exit and config.slots == 2
    assert config.store_bytes == 50 << 30
    assert config.chain_urls("http://named") == ["http://127.0.0.1:9999", "http://127.0.0.1:9998"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "node" / "keys").iterdir())


def test_second_init_changes_only_the_named_settings(
    tmp_path: Path, init: str, secret: str
) -> None:
    """To name another coordinator must change neither the price nor the owner."""
    home = tmp_path / "node"
    chosen = f"--price 0.40 --price-floor 0.25 --slots 2 --owner 0x{'11' * 20}"
    more = "--public-url http://203.0.113.7:7710 --host 0.0.0.0 --port 7711"
    image = f"--executor bwrap --region eu --image python@sha256:{'0' * 64}"
    facts = json.loads(run(home, f"{init} {chosen} {more} {image} --json")[1])
    before = settings.read(home)
    other = "http://127.0.0.1:7702"
    code, text = run(home, f"init --coordinator {other} {secret} --json")
    assert code == 0 and json.loads(text) == facts
    assert settings.read(home) == replace(before, coordinators=(other,))
    assert run(home, f"init --price 0.30 --port 0 {secret}")[0] == 0
    assert settings.read(home) == replace(
        before, coordinators=(other,), price=Price(300_000), listen_port=0
    )
    code, text = run(home, f"init --price 0.20 {secret} --json")
    assert code == EXIT_REFUSED and "below the price floor of 0.25" in json.loads(text)["detail"]


def test_owner_whose_key_is_elsewhere_has_no_key_here(tmp_path: Path, init: str) -> None:
    owner = "0x" + "11" * 20
    code, text = run(tmp_path / "node", f"{init} --owner {owner} --json")
    assert code == 0 and json.loads(text)["provider"] == owner
    assert not json.loads(text)["has_owner_key"]
    assert not (tmp_path / "node" / "keys" / "owner.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--price", "-1"),
        ("--price", "0.0000001"),
        ("--price", "1e3"),
        ("--owner", "0x12"),
        ("--payout", "zz"),
        ("--public-url", "foo"),
        ("--public-url", "http://gpu.example:7710"),
        ("--public-url", "http://203.0.113.7/" + "x" * settings.PUBLIC_URL_MAX),
        ("--image", "python:3.11"),
        ("--coordinator", "foo:80"),
        ("--price-floor", "7"),
        ("--rentals on-demand --spot-percent 50 --price-floor", "0.06"),
        ("--spot-percent 50 --rentals", "spot"),
        ("--jury-price", "-2"),
        ("--trust", "-1"),
        ("--max-held", "1e3"),
        ("--chain-url", "foo"),
        ("--region", "x" * (settings.REGION_MAX + 1)),
    ],
)
def test_invalid_option_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, init: str, words: tuple[str, str]
) -> None:
    code, text = run(tmp_path / "node", f"{init} --json {' '.join(words)}")
    assert code == EXIT_REFUSED and words[1] in json.loads(text)["detail"]
    assert not (tmp_path / "node" / "node.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--rentals spot --probation", "name --no-probation, or --rentals no"),
        ("--rentals spot --executor bwrap", "not bwrap; name --executor docker-runc"),
        ("--electricity abc", "--electricity: 'abc' is no amount"),
        ("--rentals spot --egress hf.co --egress none", "none goes with no other host"),
        ("--schedule none", "or always"),
        ("--job-disk 99999TB", "of it free"),
    ],
)
def test_options_that_contradict_or_cannot_be_meant_come_with_the_remedy(
    tmp_path: Path, init: str, words: str, told: str
) -> None:
    code, text = run(tmp_path / "node", f"{init} --json {words}")
    assert code == EXIT_REFUSED and told in json.loads(text)["detail"]
    assert not (tmp_path / "node" / "node.json").exists()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"slots":-1', '"slots":0'),
        ('"slots":-1', '"slots":17'),
        ('"listenPort":7710', '"listenPort":70000'),
        ('"storeBytes":', '"storeBytes":-1'),
        ('"jurySlots":1', '"jurySlots":17'),
        ('"juryCases":24', '"juryCases":1001'),
        ('"transport":"auto"', '"transport":"quic"'),
        (f'"{URL}"', '"nonsense"'),
        (f'"{URL}"', ""),
        ('"priceFloor":0', '"priceFloor":200000'),
        ('"price":100000', '"price":-1'),
        ("}", ""),
        ('"', ""),
    ],
)
def test_damaged_settings_are_refused_with_the_file_and_the_remedy(
    tmp_path: Path, init: str, secret: str, was: str, now: str
) -> None:
    """An editor or a crash may damage the files in the provider's home."""
    home = tmp_path / "node"
    assert run(home, init)[0] == 0
    text = (home / "node.json").read_text()
    assert was in text
    damaged = text.replace(was, now)
    (home / "node.json").write_text(damaged)
    for words in (f"up {secret}", f"check {secret}", f"rotate {secret}", init):
        code, told = run(home, f"{words} --json")
        detail = json.loads(told.splitlines()[-1])["detail"]
        assert code == EXIT_REFUSED
        assert str(home / "node.json") in detail and "quorate node init" in detail
    assert (home / "node.json").read_text() == damaged
    (home / "status.json").write_text("{")
    code, told = run(home, "status --json")
    assert code == EXIT_REFUSED and str(home / "status.json") in told


def test_old_settings_survive_a_disk_that_fills_during_the_write(
    tmp_path: Path, init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "node"
    assert run(home, init)[0] == 0
    before = settings.read(home)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        settings.write(home, replace(before, slots=2))
    assert settings.read(home) == before


def test_commands_without_a_provider_have_stable_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path / "node", "up --json")[0] == EXIT_REFUSED
    assert run(tmp_path / "node", "status --json")[0] == EXIT_UNAVAILABLE
    assert run(tmp_path / "node", "drain")[0] == EXIT_UNAVAILABLE


def test_check_works_before_init_and_gives_a_fix_for_each_failure(tmp_path: Path) -> None:
    code, text = run(tmp_path / "node", "check --json")
    view = json.loads(text)
    names = {item["name"] for item in view["findings"]}
    assert code == EXIT_REFUSED and not view["good"]
    assert {"provider", "machine", "host", "engine"} <= names
    assert all(item["fix"] for item in view["findings"] if not item["is_good"])


async def test_sizes_and_prices_that_cannot_be_meant_are_told(tmp_path: Path, init: str) -> None:
    code, text = run(tmp_path / "home", f"{init} --electricity 30 --json")
    assert code == EXIT_REFUSED and "30 USD per kWh; write USD and no cents" in text
    code, text = run(tmp_path / "home", f"{init} --store-size 1KB --json")
    assert code == EXIT_REFUSED and "--store-size: 1KB holds no job" in text
    config = Config(home=tmp_path, coordinators=(), job_disk_bytes=9 * 10**15, store_bytes=10**15)
    found = await check_node(config, None, VirtualClock())
    (disk,) = (item for item in found if item.name == "disk")
    assert not disk.is_good and "name 10000.0 TB, and the disk has" in disk.text


async def test_check_says_whether_rentals_are_offered_and_why_not(tmp_path: Path) -> None:
    config = Config(
        home=tmp_path,
        coordinators=(),
        is_devnet=True,
        executor=ExecutorKind.PROCESS,
        rentals=RentalTerms.ON_DEMAND,
        egress=("a.org", "*.hf.co"),
    )
    found = {item.name: item for item in await check_node(config, None, VirtualClock())}
    assert not found["rentals"].is_good and "--executor docker-runc" in found["rentals"].fix
    assert found["rentals"].text.startswith("not offered: rentals need Docker with runc")
    good = rentals_result(replace(config, spot_percent=60), "")
    assert good.is_good and good.text == "on-demand and spot at 60 %, egress a.org, *.hf.co"
    none = rentals_result(replace(config, rentals=RentalTerms.NO), "no engine")
    assert none.is_good and none.text == "not offered"


async def test_process_executor_needs_a_devnet(tmp_path: Path) -> None:
    """The process executor isolates nothing."""
    with pytest.raises(Refused) as refused:
        await choose(
            Config(home=tmp_path, coordinators=(), executor=ExecutorKind.PROCESS),
            "owner",
            VirtualClock(),
        )
    assert refused.value.code is Code.UNSUPPORTED


# --------------------------------------------------------------------------------------- host


@pytest.mark.rule("2.18")
@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V4_FLAGS, "v4"),
        (V3_FLAGS, "v3"),
        (V3_FLAGS - {"fma"}, "v2"),
        (V2_FLAGS, "v2"),
        (V2_FLAGS - {"ssse3"}, "v1"),
    ],
)
def test_one_missing_cpu_flag_gives_the_level_below(flags: frozenset[str], level: str) -> None:
    host = cpu_host("x86_64", CpuInfo("GenuineIntel", "", flags))
    assert host == Host("x86_64", level)
    host.validate(is_gpu=False)


def test_an_owner_may_name_a_lower_level_of_the_cpu() -> None:
    assert [cpu_level_of(text, "cpuLevel") for text in ("", "v1", "v4")] == ["", "v1", "v4"]
    for wrong in ("v5", "armv8", "x"):
        with pytest.raises(Refused, match="write v1, v2, v3 or v4"):
            cpu_level_of(wrong, "cpuLevel")


@pytest.mark.rule("2.18")
def test_the_host_comes_from_the_first_processor() -> None:
    """The vendor is no part of it, and ARM has one level."""
    text = (
        "processor\t: 0\nvendor_id\t: Weird\nmodel name\t: X\nflags\t\t: "
        + " ".join(V2_FLAGS)
        + "\n\nprocessor: 1\nflags: avx2\n"
    )
    cpu = read_cpuinfo(text)
    assert (cpu.vendor, cpu.model, cpu.flags) == ("Weird", "X", V2_FLAGS)
    arm = cpu_host("aarch64", read_cpuinfo("processor : 0\nFeatures : fp asimd\n"))
    arm.validate(is_gpu=False)


# ------------------------------------------------------------------------- registration and network


def keys(has_owner: bool = True) -> ProviderKeys:
    return ProviderKeys(
        PROVIDER, PROVIDER, OPERATOR, PeerKey(SECRET), SECRET, STRANGER if has_owner else None
    )


GATEWAY = "http://127.0.0.1:7710"


@pytest.mark.rule("3.56")
@pytest.mark.parametrize(
    ("public_url", "observed", "url"),
    [
        ("http://203.0.113.7:7710", ("198.51.100.1",), "http://203.0.113.7:7710"),
        ("", ("198.51.100.1",), "http://198.51.100.1"),
        ("", ("198.51.100.1", "203.0.113.9", "203.0.113.9"), "http://203.0.113.9"),
        ("", ("2001:db8::7",), "http://[2001:db8::7]"),
        ("", ("::ffff:198.51.100.1",), "http://198.51.100.1"),
        ("", ("127.0.0.1", "127.0.0.1", "198.51.100.1"), "http://198.51.100.1"),
        ("", ("127.0.0.1", "::1", "0.0.0.0", "", "nonsense"), GATEWAY),
        ("", (), GATEWAY),
    ],
)
def test_network_is_the_one_that_coordinators_observe(
    public_url: str, observed: tuple[str, ...], url: str
) -> None:
    """A router hides the provider's own address."""
    assert network_url(public_url, observed, GATEWAY) == url
    network_of(url)


CURRENCY = Currency(11155111, Address(b"\x55" * 20), "USDC")
READY = RegistrationState(
    1, OPERATOR.address, 1, 10**20, 10**20, Amount(0), Amount(0), False, {}, CURRENCY
)


def test_missing_registration_and_money_come_with_a_remedy() -> None:
    """A problem that does not keep the provider from working does not stop the start."""
    assert missing(READY, keys(), 10**9) == ()
    fresh = RegistrationState(
        0, ZERO_ADDRESS, 0, 0, 0, Amount(40), Amount(100), False, {}, CURRENCY
    )
    found = missing(fresh, keys(), 10**9)
    assert [item.is_blocking for item in found] == [True, True, False]
    owner = f"to 0x{PROVIDER.hex()} on Sepolia (chain 11155111)"
    assert found[0].remedy == f"send 0.002 ETH for gas {owner}"
    assert found[1].remedy == f"send 0.00006 USDC (token 0x{'55' * 20}) {owner}"
    elsewhere = missing(
        dataclasses.replace(fresh, tokens=Amount(100)), keys(has_owner=False), 10**9
    )
    assert any(
        PROVIDER.hex() in item.remedy and OPERATOR.address.hex() in item.remedy
        for item in elsewhere
    )
    short = {Hash32(bytes(32)): 1}
    (left,) = missing(dataclasses.replace(READY, has_left=True, short=short), keys(), 10**9)
    assert left.is_blocking and "has left" in left.what


@pytest.mark.rule("0.11")
def test_network_is_the_first_part_of_an_ip_address() -> None:
    assert (
        network_of("http://127.0.3.1:7710")
        == network_of("http://127.0.3.200")
        != network_of("http://127.0.4.1")
    )
    assert (
        network_of("http://[2001:db8:1:2::1]:1")
        == network_of("http://[2001:db8:1:ffff::1]:1")
        != network_of("http://[2001:db8:2::1]")
    )
    with pytest.raises(Refused):
        network_of("http://example.org")


def test_status_file_round_trips_and_the_token_stays(tmp_path: Path) -> None:
    """The daemon replaces a truncated token."""
    core = ProviderCore(make_terms())
    status = status_of(core, OPERATOR.address, "http://127.0.0.1:1", {})
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path / "status.json") == status and status.free_slots == (1,)
    assert read_status(tmp_path / "nothing.json") is None
    assert control_token(tmp_path) == control_token(tmp_path)
    (tmp_path / "control-token").write_text("")  # as a full disk leaves it
    assert len(control_token(tmp_path)) == 64, (
        "with an empty one anybody could give the owner's commands"
    )
    assert (tmp_path / "control-token").stat().st_mode & 0o077 == 0


def test_evict_wants_a_reason_and_names_the_container_while_the_daemon_is_down(
    tmp_path: Path, init: str, socket_enabled: None
) -> None:
    home = tmp_path / "home"
    assert run(home, init)[0] == 0
    driver = gpu_driver(gpu_slots(PAIR, ("GPU-A", "GPU-B")))
    lease = assign(driver, 1, PAIR, gpu_spec(2)).hex()
    state = status_of(driver.core, OPERATOR.address, "http://127.0.0.1:1", {})
    write_status(home / "status.json", state)
    for why in ("", "--why ' '"):
        code, text = run(home, f"evict 0x{lease} {why} --json")
        assert code == EXIT_REFUSED and "--why: say what" in json.loads(text)["detail"]
    code, text = run(home, f"evict 0x{lease[:16]} --why spam --json")
    assert code == EXIT_UNAVAILABLE and f"docker stop quorate-{lease}" in text


def test_a_price_is_kept_in_the_settings_and_checked(tmp_path: Path, init: str) -> None:
    home = tmp_path / "home"
    assert run(home, f"{init} --price-floor 0.05")[0] == 0
    code, text = run(home, "price 0.25 --json")
    told = {"priceMicroUsd": 250_000, "isOffered": False, "isKept": True}
    assert code == 0 and json.loads(text) == told
    assert settings.read(home).price == 250_000
    for amount, gpu in (("1.20", "all"), ("2.00", "H100"), ("2.50", "h100")):
        assert run(home, f"price {amount} --gpu {gpu} --json")[0] == 0
    kept = settings.read(home)
    assert kept.price == 250_000 and kept.gpu_prices == (
        GpuPrice(Price(1_200_000)),
        GpuPrice(Price(2_500_000), "h100"),
    )
    code, text = run(home, "price 0.04 --gpu H100 --json")
    assert code == EXIT_REFUSED and "below the price floor" in json.loads(text)["detail"]
    for wrong in ("0.04", "0", "much", "1234567"):
        code, text = run(home, f"price {wrong} --json")
        assert code == EXIT_REFUSED and "price" in json.loads(text)["detail"]
    assert settings.read(home).price == 250_000


FRIEND = "0x" + "12" * 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("withdraw 5", "--to"),
        (f"withdraw 1.1234567 --to {FRIEND}", "AMOUNT: '1.1234567' has 7 decimals"),
        (f"withdraw many --to {FRIEND}", "write US dollars"),
        (f"withdraw 0 --to {FRIEND}", "more than 0"),
        ("withdraw --to 0x12", "40 hexadecimal digits"),
        (f"withdraw --to 0x{'00' * 20}", "zero address"),
        ("leave --to me", "40 hexadecimal digits"),
        ("leave", "node init"),
        ("withdraw", "node init"),
    ],
)
def test_money_commands_name_what_is_wrong(tmp_path: Path, words: str, told: str) -> None:
    result = CliRunner().invoke(app, [*words.split(), "--home", str(tmp_path / "node")])
    assert result.exit_code == EXIT_REFUSED and told in result.stderr
    assert not (tmp_path / "node").exists(), "nothing is made"


def test_pause_and_resume_wait_for_the_next_start(tmp_path: Path, init: str) -> None:
    home = tmp_path / "node"
    for command in ("pause", "resume"):
        assert run(home, command)[0] == EXIT_UNAVAILABLE, "there is no provider"
    assert run(home, init)[0] == 0
    for command, wish in (("pause", leaving.PAUSE), ("resume", leaving.RESUME)):
        code, text = run(home, command)
        assert code == 0 and "from its next start on" in text
        assert leaving.read_wish(home) == wish


def test_init_with_fewer_slots_says_when_the_stake_comes_back(tmp_path: Path, init: str) -> None:
    home = tmp_path / "node"
    assert "slot fewer" not in run(home, f"{init} --slots 3")[1]
    text = run(home, f"{init} --slots 1")[1]
    assert "2 slots fewer" in text and "200.00 USD of stake come back" in text
    assert "to the owner 180 seconds later" in text
    assert "slot fewer" not in run(home, f"{init} --slots 1")[1]


def test_a_second_init_does_not_ask_for_a_stake_that_may_be_there(
    tmp_path: Path, init: str
) -> None:
    home = tmp_path / "node"
    assert "needs 100.00 USD of stake" in run(home, init)[1]
    text = run(home, f"{init} --price 0.2")[1]
    assert "needs" not in text and "fund" not in text and "check` says what is missing" in text
    assert "A running daemon takes the change at its next start." in text


@pytest.mark.rule("5.92")
def test_probation_offers_one_run_slot(tmp_path: Path, init: str) -> None:
    home = tmp_path / "node"
    code, text = run(home, f"{init} --probation --slots 2 --json")
    assert code == EXIT_REFUSED
    assert "--slots 1 and no --gpu-price" in json.loads(text)["detail"]
    code, text = run(home, f"{init} --probation")
    assert code == 0, text
    assert "its pay is held until it is 100.00 USD, and becomes the stake" in text
    assert settings.read(home).probation


def test_two_commands_that_change_the_settings_at_once(tmp_path: Path, init: str) -> None:
    """The daemon would offer the price of one, and the file would keep that of the other."""
    home = tmp_path / "home"
    assert run(home, init)[0] == 0
    for words in ("price 0.25", f"{init} --slots 2"):
        with settings.changing(home):
            code, text = run(home, f"{words} --json")
        assert code == EXIT_UNAVAILABLE and "another command" in json.loads(text)["detail"]
        assert run(home, words)[0] == 0
    assert (settings.read(home).price, settings.read(home).slots) == (250_000, 2)


def test_an_agent_holds_the_account_keys_until_it_is_locked(
    tmp_path: Path, init: str, secret: str
) -> None:
    home = tmp_path / "node"

    def run(line: str) -> tuple[int, str]:
        return typed("node", *line.split(), "--home", str(home), "--json")

    code, text = run(init)
    assert code == 0, text
    facts = json.loads(text)
    assert run(f"unlock --for 5m {secret}")[0] == 0
    try:
        agent = key_agent.agent_of(home / "keys")
        assert agent is not None
        held = {"0x" + address.hex() for address in agent.addresses.values()}
        assert held == {facts["provider"], facts["operator"]}
    finally:
        assert json.loads(run("lock")[1]) == {"wasUnlocked": True}
    assert key_agent.agent_of(home / "keys") is None


FOUR_GPUS = Pool("L40S", "", Small(4))


def test_status_shows_the_price_per_gpu_hour_of_gpu_slots() -> None:
    gpus = a_slot(FOUR_GPUS, 10_000_001, 2)
    plain, groups = make_terms(2).classes, (tuple("ABCD"), tuple("EFGH"))
    classes = (*plain, RunSlots(gpus, plain[0].resources, groups))
    core = ProviderCore(replace(make_terms(), classes=classes))
    tree = json.loads(canonical.encode(status_of(core, OPERATOR.address, "http://127.0.0.1:1", {})))
    assert [slot_line(item) for item in tree["slots"]] == [
        "2/2 run slots free, at 0.10 USD per slot-hour",
        # Rounded up, so that nobody pays more than is shown.
        "2/2 run slots of 4 x L40S free, at 10.000001 USD per slot-hour (2.500001 per GPU-hour)",
    ]


def test_status_shows_which_gpus_a_lease_has() -> None:
    driver = gpu_driver(gpu_slots(PAIR, ("GPU-A", "GPU-B")))
    first = assign(driver, 1, PAIR, gpu_spec(2))
    state = status_of(driver.core, OPERATOR.address, "http://127.0.0.1:1", {})
    [lease] = json.loads(canonical.encode(state))["leases"]
    assert lease_line(lease).endswith(" Accepted on GPU-A, GPU-B") and first.hex()[:8] in str(lease)
