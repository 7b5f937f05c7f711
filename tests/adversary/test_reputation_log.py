"""Attacks on the public log of a coordinator: a rewritten line, a dropped line, a swapped order.

The log comes from a scripted market of sixty jobs with faults and lapses. A second process has the
file of the log and nothing else.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quorate_coordinator.core.matching import fetched_content
from quorate_coordinator.core.model.lease import Committed, Revealed, Silent
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec import canonical
from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages import envelope
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Summary
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.reputation import fold
from quorate_protocol.rules.reputation.public_log import LogOf, Reading, read
from quorate_protocol.units import ZERO_HASH, ExecutionEnd, Hash32, Sequence
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.logged_market import JOBS, LoggedMarket, sixty_jobs
from support.markets.scripted_market import COORDINATOR, DOMAIN, STATEMENT

STRANGER = KeySigner(b"\x77" * 32)
LOG_OF = LogOf(DOMAIN, COORDINATOR.address, STATEMENT.address, recover)
FOLD = """
import json, sys
from pathlib import Path
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Summary
from quorate_protocol.rules.reputation.fold import view_of
from quorate_protocol.rules.reputation.public_log import LogOf, read
from quorate_protocol.units import Address
from quorate_runtime.keys.crypto import recover
chain, stakes, coordinator, key = sys.argv[2:]
log_of = LogOf(
    Domain(int(chain), Address(bytes.fromhex(stakes))),
    Address(bytes.fromhex(coordinator)), Address(bytes.fromhex(key)), recover,
)
lines = [envelope.decode(line, Summary) for line in Path(sys.argv[1]).read_bytes().splitlines()]
found = read(lines, log_of)
print(json.dumps({
    "root": found.log.root().hex(),
    "trusts": {a.hex(): canonical.to_json(view_of(t)) for a, t in found.trusts.items()},
}))
"""


def acked(market: LoggedMarket) -> list[tuple[int, Hash32]]:
    """The pins that clients hold: (length, root) of each Ack."""
    acks = [job.ack.message for job in market.core.state.jobs.values()]
    return [(ack.log_length, ack.log_root) for ack in acks]


def pins_of(market: LoggedMarket) -> dict[int, Hash32]:
    own = market.core.state.own.log
    return {length: root for length, root in acked(market) if length} | {own.count: own.root()}


@pytest.mark.rule("7.2", "7.20", "7.25", "7.26", "3.70")
def test_a_second_process_computes_every_number_from_the_log_alone(tmp_path: Path) -> None:
    market = sixty_jobs()
    ends = {item.end for line in market.lines for item in line.message.executions}
    assert {ExecutionEnd.AGREED, ExecutionEnd.FAULTED, ExecutionEnd.LAPSED} <= ends
    assert len(market.lines) >= JOBS
    deaf = list(market.parties)[2]
    answered, executions = market.core.state.trust[deaf].availability()
    assert answered < executions <= 20
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(map(envelope.encode, market.lines)) + b"\n")
    names = [DOMAIN.verifying_contract, COORDINATOR.address, STATEMENT.address]
    words = [str(DOMAIN.chain_id), *(name.hex() for name in names)]
    done = subprocess.run(
        [sys.executable, "-c", FOLD, str(file), *words], capture_output=True, check=True
    )
    state, found = market.core.state, json.loads(done.stdout)
    assert found["root"] == state.own.log.root().hex()
    assert found["trusts"] == {
        owner.hex(): canonical.to_json(fold.view_of(known)) for owner, known in state.trust.items()
    }


@pytest.mark.rule("7.21", "7.23")
def test_every_ack_names_the_log_and_the_trust_that_follows_from_it() -> None:
    market = sixty_jobs()
    roots: dict[int, Hash32] = {0: Log().root()}
    states: dict[int, Reading] = {0: Reading()}

    def told(reading: Reading, _: Summary) -> None:
        roots[reading.log.count] = reading.log.root()
        states[reading.log.count] = Reading(reading.log, dict(reading.trusts))

    read(market.lines, LOG_OF, told=told)
    for job in market.core.state.jobs.values():
        ack = job.ack.message
        assert roots[ack.log_length] == ack.log_root
        trust_class = market.lines[0].message.trust_class
        trusts = states[ack.log_length].trusts
        assert fold.trust_root(trusts, trust_class) == ack.state_root


@pytest.mark.rule("7.22")
def test_a_log_names_neither_client_nor_job() -> None:
    market = sixty_jobs()
    text = b"".join(map(envelope.encode, market.lines)).decode()
    for job in market.core.state.jobs.values():
        assert job.id.hex() not in text and job.submission.order.message.client.hex() not in text
        assert job.submission.order.message.spec_hash.hex() not in text
    job = next(iter(market.core.state.jobs.values()))
    assert fold.job_hash(job.id) in {line.message.job_hash for line in market.lines}


@pytest.mark.rule("7.24")
def test_a_stranger_cannot_rewrite_a_line(attack) -> None:  # type: ignore[no-untyped-def]
    market = sixty_jobs()
    lines = list(market.lines)
    faulted = next(
        place
        for place, line in enumerate(lines)
        if any(item.end is ExecutionEnd.FAULTED for item in line.message.executions)
    )
    cleaned = without_faults(lines[faulted].message)
    for forged in (Envelope(cleaned, lines[faulted].sig), seal(DOMAIN, cleaned, STRANGER.sign)):
        with pytest.raises(Refused, match=f"line {faulted} was rewritten"):
            read([*lines[:faulted], forged, *lines[faulted + 1 :]], LOG_OF)
    attack(
        name="a mirror of the log rewrites a faulty line",
        before="nobody had the log; trust was the coordinator's word",
        now=f"refused, with the number of the line ({faulted})",
        cost="nothing",
    )


@pytest.mark.rule("7.23", "7.24")
def test_a_coordinator_cannot_rewrite_its_own_line(attack) -> None:  # type: ignore[no-untyped-def]
    """It signs the changed line, and even all lines after it. An Ack of that time convicts it."""
    market = sixty_jobs()
    lines = list(market.lines)
    place = next(
        number
        for number, line in enumerate(lines)
        if any(item.end is ExecutionEnd.FAULTED for item in line.message.executions)
    )
    changed = seal(DOMAIN, without_faults(lines[place].message), STATEMENT.sign)
    with pytest.raises(Refused, match=f"line {place + 1} does not follow"):
        read([*lines[:place], changed, *lines[place + 1 :]], LOG_OF)
    again = signed_again([*lines[:place], changed, *lines[place + 1 :]])
    assert read(again, LOG_OF).log.count == len(lines), "the lines alone do not show it"
    with pytest.raises(Refused, match="one of them was rewritten"):
        read(again, LOG_OF, pins_of(market))
    caught = sum(length > place for length, _ in acked(market))
    attack(
        name="a coordinator rewrites its log after the fact",
        before="trust was its word: any k, λ and strikes",
        now=f"refused; {caught} of {JOBS} Acks show its signature under the old log",
        cost="its own signed Acks convict it",
    )


@pytest.mark.rule("7.24")
def test_a_dropped_line_is_refused(attack) -> None:  # type: ignore[no-untyped-def]
    market = sixty_jobs()
    lines = list(market.lines)
    with pytest.raises(Refused, match="line 7 says that it is line 8"):
        read([*lines[:7], *lines[8:]], LOG_OF)
    with pytest.raises(Refused, match=f"the lines from {len(lines) - 1} on were dropped"):
        read(lines[:-1], LOG_OF, pins_of(market))
    renumbered = signed_again([*lines[:7], *lines[8:]])
    with pytest.raises(Refused):
        read(renumbered, LOG_OF, pins_of(market))
    attack(
        name="a line of the log is dropped",
        before="a fault could be forgotten",
        now="refused, with the number of the line",
        cost="nothing",
    )


@pytest.mark.rule("7.24")
def test_a_swapped_order_is_refused(attack) -> None:  # type: ignore[no-untyped-def]
    lines = list(sixty_jobs().lines)
    lines[4], lines[5] = lines[5], lines[4]
    with pytest.raises(Refused, match="line 4 says that it is line 5"):
        read(lines, LOG_OF)
    attack(
        name="two lines of the log are swapped",
        before="another order gives another k",
        now="refused, with the number of the line",
        cost="nothing",
    )


@pytest.mark.rule("4.69")
def test_a_provider_cannot_claim_content_that_it_never_had(attack) -> None:  # type: ignore[no-untyped-def]
    """Only a Commit confirms what an offer says of a cache."""
    state = sixty_jobs().core.state
    job = next(iter(state.jobs.values()))
    context = StepContext(state, sixty_jobs().core.rules, job.created_at, ZERO_HASH, [])
    wanted = frozenset(fetched_content.prefixes_of(job.submission.spec))
    committed = {
        lease.provider
        for lease in state.leases.values()
        if isinstance(lease.phase, Committed | Revealed | Silent)
    }
    believed = {
        owner
        for owner in [*committed, STRANGER.address]
        if fetched_content.has_cached(context, owner, wanted, wanted)
    }
    attack(
        name="an offer names content that its provider never fetched",
        before="ranked as if it were 5 % cheaper",
        now="nothing, before it has committed a job with that content",
        cost="nothing",
    )
    assert believed == committed


def without_faults(summary: Summary) -> Summary:
    """The same line as if everybody had agreed."""
    ends = {ExecutionEnd.FAULTED: ExecutionEnd.AGREED}
    return replace(
        summary,
        executions=tuple(
            replace(item, end=ends.get(item.end, item.end)) for item in summary.executions
        ),
    )


def signed_again(lines: list[Envelope[Summary]]) -> list[Envelope[Summary]]:
    """What a coordinator signs that makes a whole new log of these lines."""
    log, found = Log(), []
    for line in lines:
        message = replace(line.message, seq=Sequence(log.count), previous_root=log.root())
        found.append(seal(DOMAIN, message, STATEMENT.sign))
        log = log.append(found[-1].digest(DOMAIN))
    return found
