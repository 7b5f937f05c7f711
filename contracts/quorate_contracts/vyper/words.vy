# pragma version 0.4.3
"""
@title words
@notice Every word in which several values lie, with its reader and its writer. No other module shifts bits.
@dev Amounts have 60 bits. Escrow holds at most 2**60 - 1 token units, so no sum of balances is larger.
"""

struct Tab:
    locked: uint256  # put in so far, less what went back
    paid: uint256  # cumulative: what vouchers and payrolls took, never above `locked`
    drawn: uint256  # what left the tab of it, never above `paid`
    closesAt: uint256  # seconds; 0 = open

struct Limit:
    amount: uint256  # of one day (UTC)
    day: uint256  # of `spent`, counted from 1970
    spent: uint256

struct Job:
    budget: uint256  # 0 = never funded
    until: uint256  # seconds: evidence is taken until then
    firstShown: uint256  # seconds; 0 = nothing shown
    lastShown: uint256
    count: uint256  # of executions shown
    isOver: uint256  # 1 = paid or given back

MASK36: constant(uint256) = 2**36 - 1
MASK64: constant(uint256) = 2**64 - 1
AMOUNT_MAX: constant(uint256) = 2**60 - 1
MASK96: constant(uint256) = 2**96 - 1
DAY: constant(uint256) = 86400


# An account: day(32) | spent on it(60) | limit of a day(60) | balance(60). The balance lies lowest, so that money is added as it is.


@internal
@pure
def _balance(word: uint256) -> uint256:
    return word & AMOUNT_MAX


@internal
@pure
def _limit(word: uint256) -> Limit:
    return Limit(amount=(word >> 60) & AMOUNT_MAX, day=word >> 180, spent=(word >> 120) & AMOUNT_MAX)


@internal
@pure
def _with_limit(word: uint256, limit: Limit) -> uint256:
    return (limit.day << 180) | (limit.spent << 120) | (limit.amount << 60) | (word & AMOUNT_MAX)


# A tab: locked(60) | paid(60) | drawn(60) | closesAt(36)


@internal
@pure
def _tab(word: uint256) -> Tab:
    return Tab(locked=word >> 156, paid=(word >> 96) & AMOUNT_MAX, drawn=(word >> 36) & AMOUNT_MAX, closesAt=word & MASK36)


@internal
@pure
def _tab_word(tab: Tab) -> uint256:
    return (tab.locked << 156) | (tab.paid << 96) | (tab.drawn << 36) | tab.closesAt


# A session: upTo(128) | expires(64), as they are signed


@internal
@pure
def _session(word: uint256) -> (uint256, uint256):
    return word >> 64, word & MASK64


@internal
@pure
def _grown(word: uint256, upTo: uint256, expires: uint256) -> uint256:
    """A session whose bounds are at least these."""
    return (max(word >> 64, upTo) << 64) | max(word & MASK64, expires)


# An account and an amount: account(160) | amount(96)


@internal
@pure
def _pair(word: uint256) -> (address, uint256):
    return convert(word >> 96, address), word & MASK96


@internal
@pure
def _pair_word(account: address, amount: uint256) -> uint256:
    return (convert(account, uint256) << 96) | amount


# A funded job: budget(60) | until(36) | firstShown(36) | lastShown(36) | count(8) | isOver(8)


@internal
@pure
def _job(word: uint256) -> Job:
    return Job(budget=word >> 124, until=(word >> 88) & MASK36, firstShown=(word >> 52) & MASK36, lastShown=(word >> 16) & MASK36,
               count=(word >> 8) & 255, isOver=word & 255)


@internal
@pure
def _job_word(job: Job) -> uint256:
    return (job.budget << 124) | (job.until << 88) | (job.firstShown << 52) | (job.lastShown << 16) | (job.count << 8) | job.isOver


# An execution that was shown: pay(60) | group(196), the group being determinism class and result


@internal
@pure
def _execution(word: uint256) -> (uint256, uint256):
    return word >> 196, word & (2**196 - 1)


@internal
@pure
def _execution_word(pay: uint256, group: bytes32) -> uint256:
    return (pay << 196) | (convert(group, uint256) >> 60)
