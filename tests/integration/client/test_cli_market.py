"""The command line against the fake market: printed text, JSON and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.client.base.profile import create_profile
from quorate.job.pool import parse_pool
from quorate_content.dag.disk_tree import cid_of_path
from quorate_protocol.messages.determinism import PROFILES
from quorate_protocol.refusals import Code
from support.executors.image_archives import entry, image_entries, tar
from support.markets.cli_calls import IMAGE, Call, cli_calls
from support.markets.fake_market import Cheat, FakeMarket


@pytest.fixture
def call(fake: FakeMarket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return cli_calls(fake, tmp_path, capsys)


RUN = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m")


def job_file(tmp_path: Path, **changes: Any) -> str:
    tree = {
        "image": IMAGE,
        "command": ["python", "-c", "print(1)"],
        "max_price": "0.50",
        "max_duration": "1m",
        "name": "tile",
        **changes,
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(tree))
    return str(path)


async def test_apply_shows_the_plan_submits_and_downloads_the_output(
    call: Call, tmp_path: Path
) -> None:
    code, out, err = await call("apply", "-f", job_file(tmp_path, outputs="out"), "-y")
    assert code == 0, err
    for words in (
        "expected cost        0.0",
        "worst case",
        "offers that fit",
        "quorum-2: you pay 2 executions; if results differ, up to 7 within your budget",
        "5 %",
        "accepted (quorum-2): 2 providers agree",
    ):
        assert words in out
    assert "acked" in err and (tmp_path / "out" / "result.txt").exists()
    assert "committed" not in err  # a step of the verification, which asks nothing of the client


async def test_apply_without_yes_and_without_a_terminal_submits_nothing(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    code, _, _ = await call("apply", "-f", job_file(tmp_path))
    assert code == 8 and not fake.jobs
    code, _, err = await call("apply", "-f", job_file(tmp_path), "--json")
    assert code == 2 and "--yes" in err and not fake.jobs


@pytest.mark.rule("2.25")
async def test_a_pool_is_listed_named_and_its_owners_are_shown_before_the_order(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    code, out, err = await call("pools", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["pools"]
    assert row["name"] == "cpu" and row["hosts"] == {"x86_64-v3": len(fake.owners)}
    assert row["owners"] == [f"0x{owner.hex()}" for owner in fake.owners]
    code, out, err = await call("pools")
    assert code == 0 and row["name"] in out and "0x" + fake.owners[0].hex()[:12] in out
    code, _, err = await call("apply", "-f", job_file(tmp_path, pool=row["name"]))
    assert code == 8 and not fake.jobs and all(owner in err for owner in row["owners"])
    assert "decide which result is accepted" in err
    code, _, err = await call("apply", "-f", job_file(tmp_path, pool=row["id"]), "-y", "--json")
    assert code == 0 and all(owner in err for owner in row["owners"])
    (ordered,) = fake.jobs.values()
    assert "0x" + ordered.submission.order.message.pool.hex() == row["id"]


@pytest.mark.rule("3.41")
async def test_json_is_one_document_and_can_be_verified(call: Call, tmp_path: Path) -> None:
    options = ("--max-price", "0.5", "--ttl", "1m", "--output", str(tmp_path / "o"), "--json")
    code, out, _ = await call("run", IMAGE, *options, "--", "python", "-c", "1")
    assert code == 0
    tree = json.loads(out)
    assert tree["outcome"] == "accepted" and tree["exitStatus"] == 0 and len(tree["providers"]) == 2
    assert tree["outputIsEmpty"] is False
    code, out, _ = await call("verify", tree["receipt"], "--json")
    assert (
        code == 0 and json.loads(out)["valid"] is True and json.loads(out)["chain_checked"] is False
    )


async def test_a_flipped_byte_of_a_receipt_is_reported(call: Call, tmp_path: Path) -> None:
    _, out, _ = await call(*RUN, "--json", "--", "python")
    data = bytearray(Path(json.loads(out)["receipt"]).read_bytes())
    at = data.index(b'"sig":"0x') + 12
    data[at] = ord("1") if data[at] != ord("1") else ord("2")
    (tmp_path / "bad.json").write_bytes(data)
    code, out, _ = await call("verify", str(tmp_path / "bad.json"), "--json")
    tree = json.loads(out)
    assert code == 5 and tree["valid"] is False
    assert any(item["name"].startswith("signature:") for item in tree["failed"])


async def test_a_program_that_fails_ends_the_command_with_one(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    fake.cheat = Cheat(exit_status=3)
    code, out, err = await call(*RUN, "--", "false")
    assert code == 1 and "exited with 3" in out
    assert f"quorate --devnet {tmp_path / 'devnet.json'} logs 0x" in err
    fake.cheat = Cheat(no_files=True)
    code, _, err = await call(*RUN, "--", "true")
    assert code == 0 and "it left no files" in err and "logs 0x" in err
    code, out, _ = await call(*RUN, "--json", "--", "true")
    assert code == 0 and json.loads(out)["outputIsEmpty"] is True
    fake.cheat = Cheat(exit_status=512)
    code, out, _ = await call(*RUN, "--", "sleep")
    assert code == 1 and "longer than max_duration" in out


@pytest.mark.parametrize(
    ("cheat", "code", "named"),
    [
        (Cheat(refuse_order=Code.INSUFFICIENT_FUNDS), 3, "insufficient-funds"),
        (Cheat(foreign_verdict_key=True), 5, "signature:verdict"),
        (Cheat(lapse=True), 6, "without a result, and it cost nothing"),
        (Cheat(liars=frozenset(range(5))), 6, "no result was accepted. It cost "),
    ],
    ids=["refused", "forged", "lapsed", "unresolved"],
)
async def test_exit_codes(
    call: Call, fake: FakeMarket, cheat: Cheat, code: int, named: str
) -> None:
    fake.cheat = cheat
    got, out, err = await call(*RUN, "--json", "--", "python")
    assert got == code and named in err
    assert json.loads(out)["exitCode"] == code


async def test_no_offer_names_the_limit_to_relax(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    code, _, err = await call("apply", "-f", job_file(tmp_path, max_price="0.01"), "-y")
    assert code == 3 and "raise max_price" in err and not fake.jobs
    code, _, err = await call("plan", "-f", job_file(tmp_path, max_price="0.01"))
    assert code == 0 and "no offer fits" in err and "Next: `quorate offers`" in err
    code, out, _ = await call("plan", "-f", job_file(tmp_path, max_price="0.01"), "--json")
    assert code == 0 and json.loads(out)["nearest"].startswith("cheapest")


async def test_a_service_is_planned_and_rented_only_after_a_yes(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    file = job_file(tmp_path, type="service", max_price="1", service={"replicas": {"max": 3}})
    code, out, err = await call("plan", "-f", file)
    assert code == 0 and "tile (service)" in out
    assert "1 to 3 replicas: 0.315 USD to 0.945 USD an hour" in err and "at most 3.30 USD" in err
    code, out, err = await call("serve", file)
    assert "tile (service)" in out and "1 to 3 replicas" in err
    assert code == 8 and "add --yes" in err and "nothing is rented" in err and not fake.jobs
    code, _, err = await call("serve", file, "--json")
    assert code == 2 and "add --yes" in err and not fake.jobs


async def test_a_cid_that_the_store_lacks_is_reported_before_the_order(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    """Once the plan said that five offers fit and nothing is to be uploaded; then the run waited
    for its image until it expired.
    """
    (tmp_path / "data").write_bytes(b"nobody uploaded this")
    image, data = (
        "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy",
        str(cid_of_path(tmp_path / "data")),
    )
    file = job_file(tmp_path, image=image, inputs=[{"cid": data, "mount": "/inputs/data"}])
    code, _, err = await call("apply", "-f", file)
    assert code == 8 and not fake.jobs
    for field, cid in (("image", image), ("inputs./inputs/data", data)):
        assert err.count(f"{field}: {cid} is not in the coordinator's store") == 1
    assert "path instead of the CID (./hello.tar)" in err
    code, out, err = await call("plan", "-f", file, "--json")
    assert code == 0 and f"image: {image} is not in" in err
    assert {"field": "image", "cid": image} in json.loads(out)["notStored"]
    code, _, err = await call(
        "plan",
        "-f",
        job_file(tmp_path, inputs=[{"cid": data, "mount": "/inputs/a"}, {"path": "data"}]),
    )
    assert code == 0 and "is not in" not in err, "it is uploaded beside"


async def test_a_stored_image_without_a_command_is_refused_before_the_order(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    """Once it was ordered, and fifty providers in turn found that they could not run it."""
    terms = ("--max-price", "0.5", "--ttl", "1m", "-y")
    path, layer = tmp_path / "image.tar", tar([entry("./data", b"x" * 4_000)])
    for config, found in (({}, ExitCode.USAGE), ({"Cmd": ["b"]}, ExitCode.OK)):
        path.write_bytes(tar(image_entries([layer], config)))
        cid = str(cid_of_path(path))
        assert (await call("run", str(path), *terms, "--", "a"))[0] == ExitCode.OK
        ordered = len(fake.jobs)
        code, _, err = await call("run", cid, *terms)
        assert code == found, err
        assert len(fake.jobs) == ordered + (found is ExitCode.OK)
        assert ("the image has no command; write one after --" in err) == (code != ExitCode.OK)


async def test_an_order_that_cannot_be_signed_is_not_promised(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    """Once it stayed in the ledger, and its budget could not be withdrawn until it expired."""
    await call("apply", "-f", job_file(tmp_path), "-y")  # so that token and session are kept
    (tmp_path / "password").chmod(0o644)
    code, _, err = await call("apply", "-f", job_file(tmp_path, name="b"), "-y", "-d")
    assert code == ExitCode.NO_PROFILE and "Run: chmod 600" in err and len(fake.jobs) == 1
    (tmp_path / "password").chmod(0o600)
    code, out, err = await call("spend", "--json")
    assert code == 0 and json.loads(out)["openOrdersMicroUsd"] == 0, err


async def test_a_pool_without_offers_is_reported_by_name(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    """Once the refusal named an id of 64 digits, and a command that shows no pools."""
    file = job_file(tmp_path, pool="8x H100 SXM")
    code, _, err = await call("apply", "-f", file, "-y")
    assert code == 3 and not fake.jobs
    assert "no live offer of pool 8x H100 SXM fits (no-offer)" in err
    assert "Next: `quorate pools` lists" in err
    code, _, err = await call("plan", "-f", file)
    assert code == 0 and "pool 8x H100 SXM fits. Next: `quorate pools` lists" in err
    identity = "0x" + parse_pool("8x H100 SXM").hex()
    code, _, err = await call("plan", "-f", job_file(tmp_path, pool=identity))
    assert code == 0 and f"no live offer of pool {identity} fits" in err


async def test_detach_then_get_ps_events_logs_describe_stop_spend(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    fake.auto_finish = False
    run = await submitted(call, tmp_path, determinism="jax")
    code, out, _ = await call("ps")
    assert code == 0 and run[:14] in out and "tile" in out and "running" in out
    assert (await call("stop", run))[0] == 0
    code, out, err = await call("get", run[:10], str(tmp_path / "got"), "--json")
    assert code == 0 and (tmp_path / "got" / "result.txt").exists(), err
    code, out, _ = await call("events", run, "--json")
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert names[0] == "acked" and "verdict" in names
    code, _, err = await call("stop", run)
    assert code == 0 and "has already ended" in err and len(fake.stops) == 1
    assert (await call("logs", "tile"))[1] == "hello from the job\n"
    code, out, _ = await call("describe", run)
    assert code == 0 and run in out
    [pinned] = [line for line in out.splitlines() if line.startswith("pinned ")]
    assert pinned == f"pinned   jax 0x{PROFILES['jax'].digest().hex()[:12]}: 10 variables"
    code, out, _ = await call("describe", run, "--json")
    assert json.loads(out)["determinism"]["variables"] == dict(PROFILES["jax"].variables)
    code, out, _ = await call("spend", "--json")
    tree = json.loads(out)
    assert tree["checkedMicroUsd"] == fake.charged <= tree["vouchedMicroUsd"]
    assert tree["openOrdersMicroUsd"] == 0


async def test_ps_filters_runs_and_get_takes_wildcards(call: Call, tmp_path: Path) -> None:
    for name in ("train-1", "train-2", "other"):
        assert (await call("apply", "-f", job_file(tmp_path, name=name), "-y", "-d"))[0] == 0
    code, out, err = await call("get", "train-*", str(tmp_path / "both"))
    assert code == 0 and out.count("2 providers agree") == 2, err
    assert len(list((tmp_path / "both").glob("train-*/result.txt"))) == 2
    await call("get", "other", "train-1", "--json")
    code, out, _ = await call("ps", "train-*", "--json", "--last", "1", "--since", "2h")
    (run,) = json.loads(out)["runs"]
    assert run["name"].startswith("train-") and run["state"] == "verified"
    assert run["ageSeconds"] < 600
    code, out, err = await call("ps", "--state", "failed")
    assert code == 0 and "none of your 3 runs fits" in err
    code, out, _ = await call("describe", "other")
    assert code == 0 and "verified" in out
    assert (await call("get", "no-such-*"))[0] == ExitCode.USAGE


@pytest.mark.rule("4.60", "4.63")
async def test_a_colleagues_run_is_private_unless_it_is_public(call: Call, tmp_path: Path) -> None:
    """Another profile gives the whole job id, because its ledger does not have the run."""
    runs = {}
    for name, flag in (("secret", False), ("open", True)):
        file = job_file(tmp_path, name=name, public=flag)
        code, out, err = await call("apply", "-f", file, "-y", "--json")
        assert code == 0, err
        runs[name] = json.loads(out)["jobId"]
    _, _, err = await call("plan", "-f", job_file(tmp_path, public=True))
    assert "this run is public" in err
    devnet = json.loads((tmp_path / "devnet.json").read_text())
    create_profile(tmp_path / "bob", devnet["coordinator"], "pass", "devnet")
    devnet["clients"][0]["home"] = str(tmp_path / "bob")
    (tmp_path / "devnet.json").write_text(json.dumps(devnet))
    for words in (["logs"], ["describe"], ["events"], ["get"]):
        code, _, err = await call(*words, runs["secret"])
        assert code != 0 and "private: ask its client" in err, (words, err)
    for words in (["logs"], ["describe"]):
        code, out, err = await call(*words, runs["open"])
        assert code == 0 and out, (words, err)
    code, _, err = await call("logs", "secret")
    assert code == ExitCode.USAGE and "give a whole job id" in err


async def test_reads_ask_for_no_passphrase(call: Call, tmp_path: Path) -> None:
    code, out, _ = await call("apply", "-f", job_file(tmp_path), "-y", "--json")
    run = json.loads(out)["jobId"]
    (tmp_path / "password").unlink()
    reads = (["ps"], ["offers"], ["spend"], ["describe", run], ["events", run], ["logs", run])
    for words in reads:
        code, _, err = await call(*words)
        assert code == 0, (words, err)
    code, _, err = await call("get", run, str(tmp_path / "got"))
    assert code == 0 and (tmp_path / "got" / "result.txt").exists(), err
    (tmp_path / "alice" / "token.json").unlink()
    code, _, err = await call("ps")
    assert code == ExitCode.NO_PROFILE and "quorate unlock" in err
    assert (await call("offers"))[0] == 0


async def test_a_profile_for_another_network_is_refused(call: Call, tmp_path: Path) -> None:
    settings = tmp_path / "alice" / "client.json"
    settings.write_text(settings.read_text().replace("devnet", "mainnet"))
    code, _, err = await call("ps")
    assert code == ExitCode.NO_PROFILE and "init --limits devnet" in err


async def submitted(call: Call, folder: Path, **fields: object) -> str:
    code, out, err = await call("apply", "-f", job_file(folder, **fields), "-y", "-d", "--json")
    assert code == 0, err
    run: str = json.loads(out)["jobId"]
    return run


async def test_a_log_without_text_says_so(call: Call, fake: FakeMarket, tmp_path: Path) -> None:
    """Once nothing was printed with exit code 0, so users could not tell a silent program from a
    lost log.
    """
    fake.cheat, fake.auto_finish = Cheat(text=""), False
    run = await submitted(call, tmp_path)
    code, out, err = await call("logs", run)
    assert (code, out) == (0, "") and "no log text yet" in err and f"logs -f {run[:14]}" in err
    await call("stop", run)
    assert (await call("get", run, str(tmp_path / "got")))[0] == 0
    code, out, err = await call("logs", run, "--json")
    assert code == 0 and json.loads(out)["text"] == ""
    assert "The program printed nothing, or the text was lost" in err


async def test_a_history_waits_for_its_first_event(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the history was empty, with exit code 0, if the coordinator took more than a second."""
    run = await submitted(call, tmp_path)
    monkeypatch.setattr("quorate.client.run.HISTORY_SECONDS", 0.0)
    assert "acked" in (await call("events", run))[1]


async def test_offers_and_their_filters(call: Call) -> None:
    code, out, _ = await call("offers")
    assert code == 0 and "0.30 spot 0.30" in out and "RANKED AT" in out and "100.0 %" in out
    code, out, _ = await call("offer", "--max-price", "0.20", "--json")
    assert code == 0 and json.loads(out)["offers"] == []


@pytest.mark.rule("3.49")
async def test_an_offer_without_a_signature_is_shown_as_bad(call: Call, fake: FakeMarket) -> None:
    fake.forged_offers = frozenset(fake.owners[:1])
    code, out, err = await call("offers")
    assert code == 0 and out.count("BAD: a signature is 65 bytes") == 1
    assert (
        out.count("signed by 0x") == len(fake.owners) - 1 and "1 offers failed their check" in err
    )
    code, out, _ = await call("offers", "--json")
    checks = [row["check"] for row in json.loads(out)["offers"]]
    assert [bool(check["problem"]) for check in checks].count(True) == 1
    assert not any(check["chainChecked"] for check in checks)


async def test_the_markets_past_is_shown_by_day_and_pool(call: Call) -> None:
    code, out, err = await call("market", "--since", "3d")
    assert code == 0, err
    header, first, second = out.splitlines()
    assert header.split()[2] == "POOL" and "0x" + "05" * 32 in second
    shown = ["cpu", "5", "3", "0.10", "0.30", "0.40", "4", "2.25", "1"]
    assert first.split()[1:10] == shown
    code, out, _ = await call("market", "--by", "hour", "--pool", shown[0], "--json")
    tree = json.loads(out)
    assert tree["by"] == "hour" and [item["jobs"] for item in tree["periods"]] == [4, 0]
    code, _, err = await call("market", "--since", "soon")
    assert code == 2 and "--since" in err
    code, _, err = await call("market", "--pool", "x86_64/v3/AuthenticAMD")
    assert code == 2 and "--pool" in err and "pools took their place" in err


async def test_a_missing_input_is_reported_before_any_request(call: Call, fake: FakeMarket) -> None:
    code, _, err = await call(
        "run", IMAGE, "--max-price", "0.5", "-i", "data=table.csv", "--", "true"
    )
    assert code == 2 and "inputs./inputs/data: 'table.csv' is neither a CID nor a file here" in err
    assert not fake.jobs


async def test_an_unknown_run_is_a_usage_error(call: Call) -> None:
    code, _, err = await call("get", "0xabcd")
    assert code == 2 and "no run" in err
