"""A coordinator on a chain: a wrong result goes to court, a funded order is paid, pay is paid."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorate_content.dag.cid import Cid
from quorate_contracts import court_facts
from quorate_contracts.accusations import read_receipt
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import court
from quorate_contracts.generated.contract_calls import Query
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import JuryVote
from quorate_protocol.rules.orders import Submission, escrow_until
from quorate_protocol.units import Address, Amount, Bps, Hash32, Milliseconds, Small
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.crypto import KeySigner
from support.cli_prompt import typed
from support.markets.coordinator_stage import Stage, running, until
from support.markets.wired_providers import Floor, Place, WiredProvider
from support.messages import a_spec

OWNERS = [KeySigner(dev_account(number)) for number in range(5, 10)]
USAGE = Milliseconds(36_000)


class Quick(Floor):
    """Every run ends at once."""

    async def begin(self, name: str) -> asyncio.Event:
        event = await super().begin(name)
        event.set()
        return event


@dataclass
class Doubtful(WiredProvider):
    """The first of `liars` gives wrong results. Who runs first becomes it, if one is wanted."""

    liars: list[Address] = field(default_factory=list)

    async def _sealed(self, hashed: Hash32, salt: Hash32) -> tuple[Hash32, Cid]:
        if not self.liars:
            self.liars.append(self.account)
        self.answer = "43\n" if self.account in self.liars else "42\n"
        return await super()._sealed(hashed, salt)


@dataclass
class Town:
    """A coordinator with five owners, its client, and what commands say of it."""

    stage: Stage
    url: str
    liars: list[Address]
    options: tuple[str, ...]

    async def command(self, *words: str) -> tuple[int, str]:
        return await asyncio.to_thread(typed, "coordinator", *words, *self.options)

    async def said(self, *words: str) -> dict[str, Any]:
        status, text = await self.command(*words, "--yes", "--json")
        assert status == 0, text
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    async def ask(self, query: Query[Any]) -> Any:
        chain = ChainClient(Rpc(self.stage.chain_url, self.stage.session))
        return await ask(chain, query)

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.stage.get(self.url, path, self.stage.client)

    async def post(self, body: Submission) -> tuple[int, Any]:
        place = f"{self.url}/v1/orders"
        async with self.stage.session.post(place, data=canonical.encode(body)) as response:
            return response.status, await response.json()

    def submission(self, name: str, nonce: int, **changes: object) -> Submission:
        stage, domain = self.stage, self.stage.deployment.domain()
        plain = stage.submission(stage.client, a_spec(name), nonce)
        order = replace(plain.order.message, max_executions=Small(7))
        order = replace(order, **changes)  # type: ignore[arg-type]
        return replace(plain, order=seal(domain, order, stage.client.sign))


@asynccontextmanager
async def town(stage: Stage, folder: Path, liars: list[Address]) -> AsyncIterator[Town]:
    word = folder / "password"
    stage.make_home(word)
    await asyncio.gather(*(stage.register(key, number) for number, key in enumerate(OWNERS)))
    options = "--home", str(stage.home), "--password-file", str(word)
    async with running(stage.service()) as service, AsyncExitStack() as stack:
        floor = Quick(Place.of(stage, service.url), folder / "outputs")
        for key in OWNERS:
            owner = Doubtful(key, floor, stage.session, usage=USAGE, liars=liars)
            await stack.enter_async_context(owner.serving())
        yield Town(stage, service.url, liars, options)


async def judged(here: Town, execution: Hash32, right: Hash32) -> dict[str, Any]:
    """Lets the jury name a result, while the coordinator does everything else."""
    calls, domain = Contracts.of(here.stage.deployment).court, here.stage.deployment.domain()
    keys, salt = {key.address: key for key in OWNERS}, hash_tuple("salt")

    async def case() -> dict[str, Any]:
        rows = (await here.get("cases"))[1]["cases"]
        return dict(rows[0]) if rows else {"jurors": []}

    found = await until(case, lambda row: row["jurors"], 60)
    case_id = Hash32(bytes.fromhex(found["caseId"][2:]))
    jury = [Address(bytes.fromhex(text[2:])) for text in found["jurors"]]
    links = []
    for place, juror in enumerate(jury):
        ballot = court_facts.ballot(execution, juror, salt, right)
        links.append(court_facts.link(juror, ballot))
        signed = seal(domain, JuryVote(case_id, juror, ballot), keys[juror].sign)
        vote = court.Vote(place, ballot, signed.sig)
        listed = court_facts.jury_bytes(jury)
        await here.stage.send(keys[juror], calls.vote(execution, case_id, listed, [vote]))
    shown = [court.CourtReveal(place, juror, salt, right) for place, juror in enumerate(jury)]
    await here.stage.send(keys[jury[0]], calls.reveal(execution, links, shown))
    return dict(await until(case, lambda row: row["convicted"] is not None, 60))


@pytest.mark.rule("5.141", "5.143", "5.148", "5.157", "6.68")
async def test_a_wrong_result_goes_to_court_by_its_receipt_and_pay_by_hand(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.fund(stage.client, Amount(50 * USD))
    async with town(stage, tmp_path, []) as here:
        order = here.submission("case", 1)
        await stage.prepay(here.url, order, stage.client)

        async def ordered() -> tuple[int, Any]:
            return await here.post(order)

        _, ack = await until(ordered, lambda answer: answer[0] == 200)
        path = f"receipts/{ack['jobId']}"
        _, receipt = await until(lambda: here.get(path), lambda answer: answer[0] == 200, 90)
        file = tmp_path / "receipt.json"
        file.write_text(json.dumps(receipt, separators=(",", ":"), sort_keys=True))
        status, text = await here.command("accuse", str(file), "--yes")
        assert status == 3 and "quorate coordinator deposit 3.85" in text, text
        await here.said("deposit", "100")
        told = await here.said("accuse", str(file))
        accused = Address(bytes.fromhex(told["accused"][2:]))
        assert [accused] == here.liars and told["burned"] == 3_850_000
        status, text = await here.command("accuse", str(file), "--yes")
        assert status == 3 and "is open, or was decided" in text, text
        reveals = [run.reveal for run in read_receipt(file.read_bytes()).executions]
        right = next(
            result_digest(reveal.exit_status, reveal.output_digest)
            for reveal in reveals
            if reveal is not None and reveal.provider != accused
        )
        execution = Hash32(bytes.fromhex(told["execution"][2:]))
        case = await judged(here, execution, right)
        assert case["convicted"] and case["accused"] == told["accused"] and case["taken"] > 0
        assert case["jobId"] == ack["jobId"]
    limits = await here.said("limit", "--payroll", "50")
    assert limits["payroll"]["limit"] == 50 * USD
    await here.said("payroll")
    escrow, payer = Contracts.of(stage.deployment).escrow, KeySigner(dev_account(1)).address
    tabs = [await here.ask(escrow.tab(payer, key.address)) for key in OWNERS]
    paid = [tab.paid for tab in tabs if tab.paid]
    # The runs took no time, so each is paid a second or so, although `Jobs` would pay the claim.
    assert len(paid) >= 2 and sum(paid) >= 2 * 27, "the coordinator's own payroll may come first"
    assert (await here.said("payroll")) == {"paid": 0, "accounts": 0}


@pytest.mark.rule("6.79", "6.81")
async def test_a_funded_order_is_uploaded_for_shown_paid_or_given_back(
    stage: Stage, tmp_path: Path
) -> None:
    contracts, client = Contracts.of(stage.deployment), stage.client
    escrow, jobs = contracts.escrow, contracts.jobs
    async with town(stage, tmp_path, [Address(bytes(20))]) as here:
        mine = stage.token(client.address, client)

        async def upload() -> int:
            place = f"{here.url}/v1/content"
            async with stage.session.put(place, data=b"input", headers=mine) as response:
                return response.status

        assert await upload() == 403, "neither tab nor balance"
        approve = contracts.token.approve(escrow.address, Amount(USD))
        await stage.send(client, approve, escrow.deposit(Amount(USD), Address(bytes(20))))
        assert await upload() in (200, 201), document_cid(b"input")
        good = here.submission("funded", 1, accept_unverified=False)
        bad = here.submission("refused", 2, max_fee_bps=Bps(0))
        ids = []
        for each in (good, bad):
            order = each.order.message
            ids.append(digest(stage.deployment.domain(), order))
            end = escrow_until(order, DEVNET)
            await stage.send(client, jobs.fund(ids[-1], order.budget, end))
        answers = [
            await until(partial(here.post, replace(each, escrowed=True)), _is_answer)
            for each in (good, bad)
        ]
        assert [status for status, _ in answers] == [200, 422], answers
        assert answers[0][1]["ack"]["body"]["escrowed"]
        released = await until(
            lambda: here.ask(jobs.job(client.address, ids[1])),
            lambda job: job.until <= time.time() + DEVNET.evidence_window + 5,
        )
        assert not released.is_over and released.budget == bad.order.message.budget
        paid = await until(
            lambda: here.ask(jobs.job(client.address, ids[0])), lambda job: job.is_over, 90
        )
        assert paid.count == 2
        owed = [await here.ask(escrow.balance_of(key.address)) for key in OWNERS]
        assert sorted(owed) == [0, 0, 0, 1000, 1000]


def _is_answer(answer: tuple[int, Any]) -> bool:
    return answer[0] not in (409, 503)
