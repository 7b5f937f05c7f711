"""Broken rules of Escrow and Jobs: each line that decides something dropped, and those below."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from quorate_contracts.compile import SOURCES as FOLDER

SOURCES = ("Escrow", "balances", "money_requests", "words", "orders", "Jobs")
DECIDES = re.compile(
    r" +(assert|log|extcall|balances\._|self\._\w+\(|(self|job|tab|limit)\.[\w\[\].]+ [-+]?= "
    r"|(total|amount) \+= |(fee|largest|agreed|last|ready) = |moved\.append)"
)
CHANGED = """
Escrow
a token enters a deposit
    @nonreentrant\\ndef deposit( => def deposit(
a token enters a redemption
    @nonreentrant\\ndef redeem( => def redeem(
a token enters a draw
    @nonreentrant\\ndef draw( => def draw(
a token enters a draw of many
    @nonreentrant\\ndef draw_many( => def draw_many(
a token enters an end
    @nonreentrant\\ndef finish( => def finish(
an owner has its vouchers twice
    if poster != empty(address): => if True:
a coordinator's vouchers are credit
    each, poster == empty(address)) => each, True)
only the last voucher counts
    total += self._redeem => total = self._redeem
only the last lock counts
    total += amount => total = amount
a posting key states no receipts
    in [payee, poster] => in [payee]
payrolls lower what is paid
    if cumulative > tab.paid: => if True:
only the last payer's credit is drawn
    total += credit => total = credit
the payee's account has a limit
    if msg.sender != payee: => if True:
paid money is given back
    amount > 0 and amount <= tab.locked - tab.paid => amount > 0 and amount <= tab.locked
nothing is given back
    amount > 0 and amount <= tab.locked - tab.paid => amount <= tab.locked - tab.paid
a tab ends a second early
    block.timestamp > tab.closesAt => block.timestamp >= tab.closesAt
open tabs are finished
    tab.closesAt != 0 and block => block
the end pays what is paid
    left: uint256 = tab.locked - tab.paid => left: uint256 = tab.locked
a tab to oneself
    amount > 0 and payer != payee and => amount > 0 and
nothing is locked
    amount > 0 and payer != payee => payer != payee
a tab outgrows its word
    payer != payee and tab.locked + amount <= words.AMOUNT_MAX => payer != payee
closing is prolonged
    word != 0 and tab.closesAt == 0 => word != 0
an empty tab closes
    word != 0 and tab.closesAt == 0 => tab.closesAt == 0
coordinators close as clients do
    (COORDINATOR_CLOSE if is_coordinator else CLIENT_CLOSE) => CLIENT_CLOSE
clients close as coordinators do
    (COORDINATOR_CLOSE if is_coordinator else CLIENT_CLOSE) => COORDINATOR_CLOSE
a session counts for every payee
    shown.sessionKey, payee, shown.upTo => shown.sessionKey, shown.payer, shown.upTo
a voucher names no payee
    VOUCHER_TYPE, payer, payee, cumulative => VOUCHER_TYPE, payer, payer, cumulative
a voucher pays what is not locked
    min(cumulative, tab.locked) => cumulative
an old voucher lowers what is paid
    if covered <= tab.paid: => if covered == tab.paid:
sessions end at once
    <= until + CLIENT_CLOSE => <= until
a session ends a second early
    <= until + CLIENT_CLOSE => < until + CLIENT_CLOSE
a replaced statement key ends as a session
    COORDINATOR_CLOSE, "expired" => CLIENT_CLOSE, "expired"
a relayed request closes the relayer's tab
    self._close(account, payee) => self._close(msg.sender, payee)
balances
a token enters a withdrawal
    @nonreentrant\\ndef withdraw( => def withdraw(
a token enters a payment
    @nonreentrant\\ndef pay( => def pay(
more comes in than fits
    amount > 0 and amount <= words.AMOUNT_MAX - min(before, words.AMOUNT_MAX) => amount > 0
an owner is paid at its account
    return account if payout == empty(address) else payout => return account
who has no payout is paid nowhere
    return account if payout == empty(address) else payout => return payout
a token's refusal is overlooked
    success and (len(answer) == 0 or convert(answer, uint256) != 0) => success
a token must answer
    (len(answer) == 0 or convert(answer, uint256) != 0) => convert(answer, uint256) != 0
a payroll costs nothing
    self._spent(word, amount) - amount => self._spent(word, amount)
a fee comes on top
    self._withdraw(account, amount - fee) => self._withdraw(account, amount)
a fee leaves nothing
    fee < amount => fee <= amount
a day never ends
    if limit.day != today: => if limit.day == 0:
a lower limit is overlooked
    limit.amount - min(limit.spent, limit.amount) => limit.amount
payrolls outgrow their word
    payroll <= words.AMOUNT_MAX and => True and
locks outgrow their word
    and locks <= words.AMOUNT_MAX => and True
yesterday's payroll is told as today's
    payroll.spent if payroll.day == today else 0 => payroll.spent
yesterday's locks are told as today's
    locks.spent if locks.day == today else 0 => locks.spent
money_requests
a deadline ends a second early
    block.timestamp <= convert => block.timestamp < convert
anybody signs requests
    sig) == account => sig) != empty(address)
a closing request names no payee
    CLOSE_TYPE, account, payee, terms => CLOSE_TYPE, account, account, terms
a locking request names no payee
    LOCK_TYPE, account, payee, amount => LOCK_TYPE, account, account, amount
words
sessions shrink
    max(word >> 64, upTo) => upTo
sessions end earlier
    max(word & MASK64, expires) => expires
two results are one
    (convert(group, uint256) >> 60) => (convert(group, uint256) >> 255)
orders
exit statuses are one result
    abi_encode(exitStatus, outputDigest) => abi_encode(empty(uint16), outputDigest)
Jobs
an order ends in the past
    block.timestamp < until and until => until
a budget is bound for ever
    until <= block.timestamp + FUNDED_MAX => True
the first moment moves
    if job.count == 0: => if True:
an owner is listed twice
    word != 0 and place > last => word != 0
an owner that showed nothing is listed
    word != 0 and place > last => place > last
one owner agrees with itself
    largest: uint256 = 2 => largest: uint256 = 1
the window ends a second early
    block.timestamp > ready => block.timestamp >= ready
a window prolongs the evidence
    ready = min(ready, job.lastShown + EVIDENCE_WINDOW) => ready = job.lastShown + EVIDENCE_WINDOW
who disagrees is counted
    largest:\\n            total += => largest or True:\\n            total +=
who disagrees is paid
    largest:\\n            moved => largest or True:\\n            moved
more than the budget is paid
    min(due, budget) => due
a client takes back a second early
    block.timestamp > job.until => block.timestamp >= job.until
a client takes back what two earned
    job.count < 2 => job.count < 3
a posting key releases nothing
    staticcall Stakes(STAKES).posting_key(order.coordinator)] => order.coordinator]
a release prolongs
    min(job.until, block.timestamp + EVIDENCE_WINDOW) => block.timestamp + EVIDENCE_WINDOW
a release leaves no window
    min(job.until, block.timestamp + EVIDENCE_WINDOW) => block.timestamp
evidence of a year ago
    uint256) + EVIDENCE_AGE => uint256) + 400 * DAY
evidence is old a second early
    assert block.timestamp <= acceptBy => assert block.timestamp < acceptBy
an order expires a second early
    assert acceptBy <= convert => assert acceptBy < convert
commits before their time
    committedAt + START_ALLOWANCE >= acceptBy => True
commits in the future
    committedAt <= block.timestamp => True
a commit in the first second is a copy
    committedAt <= firstShown => committedAt < firstShown
another tier
    run.assignment.priceTier == order.priceTier => True
any price
    run.assignment.pricePerHour <= order.maxPricePerHour => True
classes agree
    keccak256(abi_encode(run.commit.classId, result)) => result
usage has no bound
    min(convert(run.commit.usageMs, uint256), bounds * 1000) => convert(run.commit.usageMs, uint256)
an execution has no longest time
    min(convert(run.assignment.maxDuration, uint256), => max(0,
a commit's time bounds nothing
    START_ALLOWANCE - convert => START_ALLOWANCE + convert
a pay is above the budget
    MS_PER_HOUR, budget) => MS_PER_HOUR, 2**60 - 1)
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source with one change."""

    name: str
    source: str
    text: str


def text_of(source: str) -> str:
    return (FOLDER / f"{source}.vy").read_text()


def dropped(source: str) -> Iterator[Mutant]:
    """A mutant for each line that decides something: it does nothing. Vyper itself refuses a source
    that does not initialise its modules.
    """
    lines, function = text_of(source).splitlines(), ""
    for place, line in enumerate(lines):
        function = line[4:].partition("(")[0] if line.startswith("def ") else function
        is_whole = DECIDES.match(line) and line.count("(") == line.count(")")
        if function and is_whole and ".__init__(" not in line:
            indent = line[: len(line) - len(line.lstrip())]
            text = "\n".join([*lines[:place], f"{indent}pass", *lines[place + 1 :], ""])
            yield Mutant(f"{function} without {line.strip()[:70]}", source, text)


def changed(table: str, sources: tuple[str, ...]) -> Iterator[Mutant]:
    """The mutants of a table. Each text stands in its source once."""
    source = name = ""
    for line in table.strip().splitlines():
        if line in sources:
            source = line
        elif not line.startswith("    "):
            name = line
        else:
            old, new = line[4:].replace("\\n", "\n").split(" =>")
            text = text_of(source)
            assert text.count(old) == 1, f"{name}: {source}.vy has its text {text.count(old)} times"
            yield Mutant(name, source, text.replace(old, new.removeprefix(" ")))


def mutants() -> list[Mutant]:
    """All mutants."""
    return [*changed(CHANGED, SOURCES), *(each for source in SOURCES for each in dropped(source))]
