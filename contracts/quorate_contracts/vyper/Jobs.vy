# pragma version 0.4.3
"""
@title Jobs
@notice An order with an escrow of its own (PROTOCOL §6). Its client funds it, executions of staked owners are shown here with all that was
        signed about them, and the largest group with one result is paid. No tab and no voucher ever covers such an order.
@dev A job is (client, jobId), and jobId is the digest of the order: so nobody but its client funds it, and no signature of the order is
     needed. Its money is this contract's balance in Escrow. Nothing here has an owner.
"""

import orders
import signatures
import words

interface Escrow:
    def take(account: address, amount: uint256): nonpayable
    def pay(pays: DynArray[uint256, PAID_MAX]): nonpayable

interface Stakes:
    def stake_of(account: address) -> uint256: view
    def posting_key(account: address) -> address: view
    def key_valid(account: address, key: address, at: uint256) -> bool: view

struct Run:
    index: uint256  # of the Assignment within its job
    blind: bytes32
    assignment: orders.Assignment
    assignmentSig: signatures.Sig
    commit: orders.Commit
    commitSig: signatures.Sig
    committedAt: uint64  # by the coordinator's CommitReceipt
    receiptSig: signatures.Sig
    exitStatus: uint16
    outputDigest: bytes32
    salt: bytes32

event Funded:
    client: indexed(address)
    jobId: indexed(bytes32)
    budget: uint256
    until: uint256

event Shown:
    client: indexed(address)
    jobId: indexed(bytes32)
    provider: indexed(address)
    pay: uint256  # if the budget covers all
    group: bytes32  # determinism class and result
    count: uint256  # of executions shown so far

event JobPaid:
    client: indexed(address)
    jobId: indexed(bytes32)
    amount: uint256  # of all executions
    fee: uint256

event Released:
    client: indexed(address)
    jobId: indexed(bytes32)
    until: uint256

event Returned:
    client: indexed(address)
    jobId: indexed(bytes32)
    amount: uint256

DAY: constant(uint256) = 86400
FUNDED_MAX: constant(uint256) = 400 * DAY
EXPIRY_MARGIN: constant(uint256) = DAY  # an execution may start so long after its order's expiry
START_ALLOWANCE: constant(uint256) = 120  # seconds that acceptBy may lie after the start
EXECUTIONS_MAX: constant(uint256) = 7
PAID_MAX: constant(uint256) = 9  # the executions, the coordinator and the client
MS_PER_HOUR: constant(uint256) = 3600000
BPS: constant(uint256) = 10000

ESCROW: public(immutable(address))
STAKES: public(immutable(address))
EVIDENCE_WINDOW: public(immutable(uint256))
EVIDENCE_AGE: public(immutable(uint256))

jobs: HashMap[address, HashMap[bytes32, uint256]]  # client -> jobId
executions: HashMap[address, HashMap[bytes32, HashMap[address, uint256]]]  # client -> jobId -> provider


@deploy
def __init__(escrow: address, stakes: address, evidenceWindow: uint256, evidenceAge: uint256):
    """The window follows each execution that is shown; evidence counts for `evidenceAge` after the end of its execution."""
    ESCROW = escrow
    STAKES = stakes
    EVIDENCE_WINDOW = evidenceWindow
    EVIDENCE_AGE = evidenceAge


@external
def fund(jobId: bytes32, budget: uint256, until: uint256):
    """Moves the budget of an order from the sender's balance here, once. Executions are shown until `until`."""
    assert self.jobs[msg.sender][jobId] == 0, "funded"
    assert budget > 0, "amount"
    assert block.timestamp < until and until <= block.timestamp + FUNDED_MAX, "time"
    extcall Escrow(ESCROW).take(msg.sender, budget)
    self.jobs[msg.sender][jobId] = words._job_word(words.Job(budget=budget, until=until, firstShown=0, lastShown=0, count=0, isOver=0))
    log Funded(client=msg.sender, jobId=jobId, budget=budget, until=until)


@external
def show(order: orders.Order, run: Run):
    """
    @notice One execution of one staked owner, with all that was signed about it. Anyone may send it, until the job is paid or over.
    @dev A key counts if it was valid at acceptBy, that of a CommitReceipt at its time. All these moments lie in the past. A commit
         after the first execution was shown here could be a copy of it, so it does not count.
    """
    domain: bytes32 = signatures._domain(STAKES)
    jobId: bytes32 = orders._order_digest(domain, order)
    job: words.Job = self._open(order.client, jobId)
    assert block.timestamp <= job.until, "late"
    assert job.count < EXECUTIONS_MAX, "count"
    provider: address = run.assignment.provider
    assert self.executions[order.client][jobId][provider] == 0, "shown"
    assert staticcall Stakes(STAKES).stake_of(provider) > 0, "stake"
    self._check_times(order, run, job.firstShown)
    group: bytes32 = self._check_run(domain, jobId, order, run)
    pay: uint256 = self._pay(run, job.budget)
    self.executions[order.client][jobId][provider] = words._execution_word(pay, group)
    if job.count == 0:
        job.firstShown = block.timestamp
    job.lastShown = block.timestamp
    job.count += 1
    self.jobs[order.client][jobId] = words._job_word(job)
    log Shown(client=order.client, jobId=jobId, provider=provider, pay=pay, group=group, count=job.count)


@external
def pay(order: orders.Order, providers: DynArray[address, EXECUTIONS_MAX]):
    """
    @notice Pays every group of the largest size, at least two owners, with the coordinator's fee; the rest is the client's balance. If
            no two agree, all of it. Anyone may send it: once two agree and a window passed in which nothing was shown, or after `until`.
    @param providers all whose executions were shown, in ascending order
    """
    jobId: bytes32 = orders._order_digest(signatures._domain(STAKES), order)
    job: words.Job = self._open(order.client, jobId)
    assert len(providers) == job.count, "count"
    pays: DynArray[uint256, EXECUTIONS_MAX] = []
    groups: DynArray[uint256, EXECUTIONS_MAX] = []
    last: uint256 = 0
    for provider: address in providers:
        word: uint256 = self.executions[order.client][jobId][provider]
        place: uint256 = convert(provider, uint256)
        assert word != 0 and place > last, "providers"
        last = place
        amount: uint256 = 0
        group: uint256 = 0
        amount, group = words._execution(word)
        pays.append(amount)
        groups.append(group)
    sizes: DynArray[uint256, EXECUTIONS_MAX] = []
    largest: uint256 = 2  # one owner alone agrees with nobody
    agreed: bool = False
    for group: uint256 in groups:
        size: uint256 = 0
        for other: uint256 in groups:
            if other == group:
                size += 1
        sizes.append(size)
        if size >= largest:
            largest = size
            agreed = True
    ready: uint256 = job.until
    if agreed:
        ready = min(ready, job.lastShown + EVIDENCE_WINDOW)
    assert block.timestamp > ready, "early"
    self._end(order.client, jobId, job)
    if not agreed:
        self._give_back(order.client, jobId, job.budget)
        return
    self._pay_group(order, jobId, job.budget, providers, pays, sizes, largest)


@external
def reclaim(client: address, jobId: bytes32):
    """After `until`, if fewer than two executions were shown: the budget is the client's balance. Anyone may send it."""
    job: words.Job = self._open(client, jobId)
    assert block.timestamp > job.until, "early"
    assert job.count < 2, "shown"
    self._end(client, jobId, job)
    self._give_back(client, jobId, job.budget)


@external
def release(order: orders.Order):
    """
    @notice The coordinator says that it assigned nothing, by its account or its posting key: evidence is taken for one window more.
    @dev Not at once: a provider that revealed its result in this moment still shows it.
    """
    assert msg.sender in [order.coordinator, staticcall Stakes(STAKES).posting_key(order.coordinator)], "signer"
    jobId: bytes32 = orders._order_digest(signatures._domain(STAKES), order)
    job: words.Job = self._open(order.client, jobId)
    assert job.count == 0, "shown"
    job.until = min(job.until, block.timestamp + EVIDENCE_WINDOW)
    self.jobs[order.client][jobId] = words._job_word(job)
    log Released(client=order.client, jobId=jobId, until=job.until)


@external
@view
def job(client: address, jobId: bytes32) -> words.Job:
    """A funded order as it stands; zeros if it was never funded."""
    return words._job(self.jobs[client][jobId])


# ------------------------------------------------------------------------------------------------------------ internal


@internal
@view
def _open(client: address, jobId: bytes32) -> words.Job:
    job: words.Job = words._job(self.jobs[client][jobId])
    assert job.budget > 0, "unknown"
    assert job.isOver == 0, "over"
    return job


@internal
@view
def _check_times(order: orders.Order, run: Run, firstShown: uint256):
    """Old orders and old keys do nothing, and nothing was committed after the first result was public."""
    acceptBy: uint256 = convert(run.assignment.acceptBy, uint256)
    committedAt: uint256 = convert(run.committedAt, uint256)
    assert acceptBy < block.timestamp, "early"
    assert acceptBy <= convert(order.expiry, uint256) + EXPIRY_MARGIN, "expired"
    assert run.assignment.maxDuration <= order.maxDuration, "duration"
    assert block.timestamp <= acceptBy + convert(run.assignment.maxDuration, uint256) + EVIDENCE_AGE, "old"
    assert committedAt + START_ALLOWANCE >= acceptBy and committedAt <= block.timestamp, "time"
    assert firstShown == 0 or committedAt <= firstShown, "copied"


@internal
@view
def _check_run(domain: bytes32, jobId: bytes32, order: orders.Order, run: Run) -> bytes32:
    """That the coordinator assigned this, its provider committed, and the coordinator had the Commit; returns class and result."""
    acceptBy: uint256 = convert(run.assignment.acceptBy, uint256)
    provider: address = run.assignment.provider
    assert run.assignment.assignmentId == orders._assignment_id(jobId, run.index, run.blind), "blind"
    assert run.assignment.coordinator == order.coordinator, "coordinator"
    assert run.assignment.specHash == order.specHash, "spec"
    assert order.pool == empty(bytes32) or order.pool == run.assignment.pool, "class"
    assert run.assignment.priceTier == order.priceTier and run.assignment.pricePerHour <= order.maxPricePerHour, "price"
    assignment: bytes32 = orders._assignment_digest(domain, run.assignment)
    key: address = signatures._signer(assignment, run.assignmentSig)
    assert staticcall Stakes(STAKES).key_valid(order.coordinator, key, acceptBy), "assignment"
    assert run.commit.assignmentHash == assignment, "commit"
    commit: bytes32 = orders._commit_digest(domain, run.commit)
    key = signatures._signer(commit, run.commitSig)
    assert staticcall Stakes(STAKES).key_valid(provider, key, acceptBy), "commit"
    key = signatures._signer(orders._receipt_digest(domain, commit, run.committedAt), run.receiptSig)
    assert staticcall Stakes(STAKES).key_valid(order.coordinator, key, convert(run.committedAt, uint256)), "receipt"
    result: bytes32 = orders._result_digest(run.exitStatus, run.outputDigest)
    assert run.commit.commitment == orders._commitment(assignment, provider, run.salt, result), "opening"
    return keccak256(abi_encode(run.commit.classId, result))


@internal
@pure
def _pay(run: Run, budget: uint256) -> uint256:
    """min(usage, maxDuration, time until the commit) × price, rounded down; at most the budget."""
    bounds: uint256 = min(convert(run.assignment.maxDuration, uint256),
                          convert(run.committedAt, uint256) + START_ALLOWANCE - convert(run.assignment.acceptBy, uint256))
    usage: uint256 = min(convert(run.commit.usageMs, uint256), bounds * 1000)
    return min(usage * convert(run.assignment.pricePerHour, uint256) // MS_PER_HOUR, budget)


@internal
def _pay_group(order: orders.Order, jobId: bytes32, budget: uint256, providers: DynArray[address, EXECUTIONS_MAX],
               pays: DynArray[uint256, EXECUTIONS_MAX], sizes: DynArray[uint256, EXECUTIONS_MAX], largest: uint256):
    """Pays and fee; above the budget all of them shrink alike. What division leaves is the client's."""
    total: uint256 = 0
    for k: uint256 in range(len(sizes), bound=EXECUTIONS_MAX):
        if sizes[k] == largest:
            total += pays[k]
    fee: uint256 = total * convert(order.maxFeeBps, uint256) // BPS
    due: uint256 = max(total + fee, 1)
    share: uint256 = min(due, budget)
    moved: DynArray[uint256, PAID_MAX] = []
    amount: uint256 = 0
    for k: uint256 in range(len(sizes), bound=EXECUTIONS_MAX):
        if sizes[k] == largest:
            moved.append(words._pair_word(providers[k], pays[k] * share // due))
            amount += pays[k] * share // due
    fee = fee * share // due
    if fee > 0:
        moved.append(words._pair_word(order.coordinator, fee))
    if amount + fee < budget:
        moved.append(words._pair_word(order.client, budget - amount - fee))
    extcall Escrow(ESCROW).pay(moved)
    log JobPaid(client=order.client, jobId=jobId, amount=amount, fee=fee)


@internal
def _end(client: address, jobId: bytes32, job: words.Job):
    job.isOver = 1
    self.jobs[client][jobId] = words._job_word(job)


@internal
def _give_back(client: address, jobId: bytes32, amount: uint256):
    extcall Escrow(ESCROW).pay([words._pair_word(client, amount)])
    log Returned(client=client, jobId=jobId, amount=amount)
