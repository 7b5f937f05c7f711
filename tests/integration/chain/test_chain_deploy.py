"""Tests `quorate chain deploy` from outside, on an empty chain."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate_contracts import deploy
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.chain_cli.creations import Creator
from quorate_contracts.chain_cli.deploy_command import QUICKNET_INFO, QUICKNET_URL
from quorate_contracts.deploy import Creation
from quorate_devnet.beacon import BeaconConfig, running_beacon
from quorate_devnet.chain.accounts import dev_account, dev_address
from quorate_devnet.market.genesis import deploy_once
from quorate_protocol.limits import BY_NAME
from support.chain.chain_nodes import node
from support.chain.empty_chain import EmptyChain, ask, empty_chain
from support.cli_prompt import typed

pytestmark = pytest.mark.anvil
ALWAYS_18 = "0x60125f5260205ff3"  # code that answers 18 to every call


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyChain]:
    with empty_chain(tmp_path_factory.mktemp("chain")) as made:
        yield made


@pytest.fixture(scope="module")
def deployed(chain: EmptyChain) -> dict[str, object]:
    """What the first deployment prints with --json."""
    status, said = deploy_with(chain, chain.key.parent / "deployment.json", "--test-token")
    assert status == 0, said
    found: dict[str, object] = json.loads(said.splitlines()[-1])
    return found


def deploy_with(
    chain: EmptyChain, out: Path, *words: str, key: Path | None = None
) -> tuple[int, str]:
    place = ("--chain-url", chain.chain_url, "--limits", "devnet", "--beacon", chain.beacon_url)
    paid = ("--key", str(key or chain.key), "--out", str(out), "--yes", "--json")
    return typed("chain", "deploy", *place, *paid, *words)


def sent(chain: EmptyChain, account: int = 0) -> int:
    """How many transactions a development account has in blocks."""
    count = ask(
        chain.chain_url, "eth_getTransactionCount", "0x" + dev_address(account).hex(), "latest"
    )
    return int(str(count), 16)


def test_a_second_run_sends_nothing_and_names_the_next_command(
    chain: EmptyChain, deployed: dict[str, object]
) -> None:
    out = chain.key.parent / "deployment.json"
    made = deploy.decode(out.read_bytes())
    assert ask(chain.chain_url, "eth_getCode", "0x" + made.court.hex(), "latest") != "0x"
    assert sent(chain) == len(CONTRACTS) and made.limits == "devnet"
    status, said = deploy_with(chain, out, "--test-token")
    assert status == 0 and "nothing was sent" in said
    assert json.loads(said.splitlines()[-1]) == deployed
    assert sent(chain) == len(CONTRACTS) and not list(out.parent.glob("*.begun"))
    assert deployed["hash"] == deploy.digest(made)
    folder = out.with_name("deployment-verification")
    facts = json.loads((folder / "contracts.json").read_text())
    assert facts.keys() == set(CONTRACTS)
    court = facts["Court"]
    assert court["address"] == "0x" + made.court.hex()
    tree = json.loads((folder / court["input"]).read_text())
    assert "Court.vy" in tree["sources"] and tree["language"] == "Vyper"
    assert deployed["next"] == [
        *("quorate", "coordinator", "init", "--deployment", str(out)),
        *("--chain-url", chain.chain_url, "--beacon-url", chain.beacon_url),
    ]


def test_an_interrupted_run_is_finished_by_the_same_command(
    chain: EmptyChain, deployed: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, send = funded(chain, tmp_path, 5), Creator._send
    count = 0

    async def killed(self: Creator, creation: Creation, bid: object) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        await send(self, creation, bid)  # type: ignore[arg-type]

    token = ("--token", str(deployed["contracts"]["TestToken"]))  # type: ignore[index]
    with monkeypatch.context() as patch:
        patch.setattr(Creator, "_send", killed)
        assert deploy_with(chain, tmp_path / "d.json", *token, key=key)[0] == 130
    assert (tmp_path / "d.json.begun").exists() and not (tmp_path / "d.json").exists()
    status, said = deploy_with(chain, tmp_path / "d.json", "--test-token", key=key)
    assert status == 2 and "another token" in said
    status, said = deploy_with(chain, tmp_path / "d.json", *token, key=key)
    assert status == 0, said
    assert sent(chain, 5) == len(CONTRACTS) - 1
    made = deploy.decode((tmp_path / "d.json").read_bytes())
    assert "0x" + made.token.hex() == token[1]


def funded(chain: EmptyChain, folder: Path, index: int) -> Path:
    path = folder / f"key-{index}"
    path.touch(mode=0o600)
    path.write_text("0x" + dev_account(index).hex())
    return path


def test_bad_input_is_refused_before_anything_is_sent(
    chain: EmptyChain, deployed: dict[str, object], tmp_path: Path
) -> None:
    known = str(deployed["contracts"]["Stakes"])  # type: ignore[index]
    coarse = "0x" + "cc" * 20
    ask(chain.chain_url, "anvil_setCode", coarse, ALWAYS_18)
    poor = tmp_path / "poor"
    poor.touch(mode=0o600)
    poor.write_text("77" * 32)
    open_to_all = funded(chain, tmp_path, 3)
    open_to_all.chmod(0o644)
    other = chain.key.parent / "deployment.json"
    cases: list[tuple[list[str], int, str]] = [
        (["--test-token", "--chain-url", "http://127.0.0.1:9"], 4, "127.0.0.1:9"),
        (["--test-token", "--chain-id", "1"], 3, "serves chain 31337, not 1"),
        (["--test-token", "--network", "sepolia"], 3, "not 11155111"),
        (["--test-token", "--network", "sepolla"], 2, "choose one of sepolia"),
        (["--token", "0x" + "ab" * 20], 3, "there is no contract"),
        (["--token", known], 3, "no ERC-20 token"),
        (["--token", coarse], 3, "18 decimals"),
        (["--token", "0xabc"], 2, "40 hex digits"),
        ([], 2, "either --token ADDRESS or --test-token"),
        (["--test-token", "--key", str(poor)], 3, "has 0 ETH"),
        (["--test-token", "--key", str(open_to_all)], 3, "chmod 600"),
        (["--test-token", "--key", str(tmp_path / "none")], 3, "quorate chain key"),
        (["--test-token", "--limits", "testnet"], 2, "every 3 s"),
        (["--test-token", "--beacon", "quicknet"], 2, "every 3 s"),
        (["--test-token", "--beacon-key", "ab" * 96], 2, "has another key"),
        (["--test-token", "--beacon", "http://127.0.0.1:9"], 4, "127.0.0.1:9"),
        (["--token", coarse, "--out", str(other)], 2, "another token"),
        (["--test-token", "--out", str(tmp_path / "no" / "x.json")], 2, "there is no folder"),
    ]
    before = sent(chain)
    for words, wanted, sentence in cases:
        status, said = deploy_with(chain, tmp_path / "x.json", *words)
        assert status == wanted and sentence in said, (words, said)
        assert "Traceback" not in said
    assert sent(chain) == before and not (tmp_path / "x.json").exists()


def test_accounts_are_funded_once_unless_it_is_asked_for_again(
    chain: EmptyChain, deployed: dict[str, object]
) -> None:
    account = "0x" + "5a" * 20
    file = str(chain.key.parent / "deployment.json")
    place = ("--chain-url", chain.chain_url, "--key", str(chain.key), "--deployment", file)

    def fund(*words: str) -> dict[str, object]:
        status, said = typed("chain", "fund", account, *place, "--coins", "0.5", "--json", *words)
        assert status == 0, said
        (gift,) = json.loads(said.splitlines()[-1])["sent"]
        return {"wei": int(gift["coinsWei"]), "usd": gift["tokens"] // 10**6}

    before = sent(chain)
    assert fund() == {"wei": 5 * 10**17, "usd": 2000}
    assert fund() == {"wei": 0, "usd": 0} and sent(chain) == before + 2
    assert fund("--usd", "2500") == {"wei": 0, "usd": 500}, "only what is lacking"
    assert fund("--again", "--usd", "0") == {"wei": 5 * 10**17, "usd": 0}
    status, said = typed("chain", "fund", account, *place)
    assert status == 0 and "had 2500.00 USD and 1 coins; nothing was sent" in said, said


def test_a_command_beside_another_one_is_refused(chain: EmptyChain, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "x.json.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, said = deploy_with(chain, tmp_path / "x.json", "--test-token")
    assert status == 3 and "another `quorate chain deploy`" in said


def test_a_nonce_that_went_elsewhere_ends_a_deployment_with_the_remedy(
    chain: EmptyChain, deployed: dict[str, object], tmp_path: Path
) -> None:
    key, me = funded(chain, tmp_path, 7), "0x" + dev_address(7).hex()
    out = tmp_path / "d.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Creator, "create_all", interrupted)
        assert deploy_with(chain, out, "--test-token", key=key)[0] == 130
    ask(chain.chain_url, "anvil_setNonce", me, "0x1")
    status, said = deploy_with(chain, out, "--test-token", key=key)
    assert status == 3 and f"Move {out}.begun away" in said


async def test_a_second_start_of_the_containers_keeps_the_contracts(tmp_path: Path) -> None:
    async with (
        node("devnet", 1) as chain,
        running_beacon(BeaconConfig(b"a seed of a test", 1_700_000_000)) as at,
    ):
        made = await deploy_once(chain.url, at, tmp_path / "devnet.json")
        assert await deploy_once(chain.url, at, tmp_path / "devnet.json") == made


async def interrupted(self: Creator, creations: tuple[Creation, ...]) -> None:
    raise KeyboardInterrupt


def test_a_new_key_is_made_once_and_opens_with_its_passphrase(tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.touch(mode=0o600)
    word.write_text("a passphrase\n")
    path = tmp_path / "deployer.json"
    words = ("chain", "key", str(path), "--password-file", str(word))
    status, said = typed(*words, "--json")
    assert status == 0 and os.stat(path).st_mode & 0o777 == 0o600
    address = json.loads(said)["address"]
    assert json.loads(path.read_text())["address"] == address.removeprefix("0x")
    status, said = typed(*words)
    assert status == 3 and "Move it away" in said


def test_quicknet_is_drands_and_fits_the_limits_of_public_chains() -> None:
    """drand names a chain by the hash of its parameters, and the URL has this hash."""
    group = "f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e"
    from hashlib import sha256

    told = QUICKNET_INFO.period.to_bytes(4, "big") + QUICKNET_INFO.genesis_time.to_bytes(8, "big")
    told += QUICKNET_INFO.public_key + bytes.fromhex(group) + b"quicknet"
    assert QUICKNET_URL.endswith("/" + sha256(told).hexdigest())
    for name in ("mainnet", "testnet"):
        assert BY_NAME[name].beacon_period == QUICKNET_INFO.period
