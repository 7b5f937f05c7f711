# pragma version 0.4.3
"""
@title Escrow
@notice Clients' money: deposits, allocations per coordinator, and the coordinators' pools that vouchers fill and claims empty
        (PROTOCOL §4, §6). One deposit cannot be promised twice: orders and vouchers are bounded by the allocation.
@dev tokens here = free deposits + (allocated - charged) of every allocation + (charged - paid) of every pool. No owner.
"""

interface Token:
    def transferFrom(owner: address, receiver: address, amount: uint256) -> bool: nonpayable
    def transfer(receiver: address, amount: uint256) -> bool: nonpayable
    def balanceOf(owner: address) -> uint256: view

interface Stakes:
    def enroll(account: address) -> uint256: nonpayable
    def role_of(account: address) -> uint256: view

struct Allocation:
    allocated: uint256  # put aside so far, less what was released
    charged: uint256  # cumulative debt by vouchers; never above `allocated`
    since: uint256  # seconds, the first allocation
    releasing: uint256  # amount of the pending release
    releaseAt: uint256  # when it can be finished; 0 = none

struct Pool:
    allocated: uint256  # of all clients, charged or not
    charged: uint256  # what vouchers brought in
    paid: uint256  # what claims took out

event Deposited:
    client: indexed(address)
    amount: uint256
    index: uint256

event Allocated:
    client: indexed(address)
    coordinator: indexed(address)
    amount: uint256

event ReleaseRequested:
    client: indexed(address)
    coordinator: indexed(address)
    amount: uint256
    readyAt: uint256

event Released:
    client: indexed(address)
    coordinator: indexed(address)
    amount: uint256

event WithdrawalRequested:
    client: indexed(address)
    amount: uint256
    readyAt: uint256

event Withdrawn:
    client: indexed(address)
    amount: uint256

COORDINATOR: constant(uint256) = 2
MASK40: constant(uint256) = 2**40 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK60: constant(uint256) = 2**60 - 1
MASK96: constant(uint256) = 2**96 - 1
MASK104: constant(uint256) = 2**104 - 1
MASK128: constant(uint256) = 2**128 - 1
PERMIT: constant(bytes4) = method_id("permit(address,address,uint256,uint256,uint8,bytes32,bytes32)", output_type=bytes4)
LISTED_MAX: constant(uint256) = 64  # vouchers of one epoch, payments of one claim

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
EPOCHS: public(immutable(address))
RELEASE_DELAY: public(immutable(uint256))
WITHDRAWAL_DELAY: public(immutable(uint256))

free_of: public(HashMap[address, uint256])  # deposited, not allocated
allocations: HashMap[address, HashMap[address, uint256]]  # client -> coordinator -> allocated(60) | charged(60) | unused(96) | since(40)
releases: HashMap[address, HashMap[address, uint256]]  # amount(128) | readyAt(48)
withdrawals: HashMap[address, uint256]  # amount(128) | readyAt(48)
pools: HashMap[address, uint256]  # charged(128) | paid(128): paid <= charged, and 2**32 clients are charged 2**96 at most
totals: HashMap[address, uint256]  # allocated by all clients, in a whole word: no client's amount leaves too little room for another's


@deploy
def __init__(token: address, stakes: address, epochs: address, releaseDelay: uint256, withdrawalDelay: uint256):
    """Epochs is named before it exists; its address follows from the deployer's nonces."""
    TOKEN = token
    STAKES = stakes
    EPOCHS = epochs
    RELEASE_DELAY = releaseDelay
    WITHDRAWAL_DELAY = withdrawalDelay


# ------------------------------------------------------------------------------------------------------------- clients


@external
@nonreentrant
def deposit(amount: uint256):
    """Takes tokens from the sender; the first deposit gives it a registration index."""
    self._deposit(amount)


@external
@nonreentrant
def deposit_with_permit(amount: uint256, deadline: uint256, v: uint256, r: bytes32, s: bytes32):
    """As deposit, with the sender's permit (EIP-2612) of this amount for this contract, which saves an approval."""
    # Anybody may have sent the permit before: then this call fails, and the allowance is there.
    permitted: bool = raw_call(TOKEN, abi_encode(msg.sender, self, amount, deadline, v, r, s, method_id=PERMIT), revert_on_failure=False)
    self._deposit(amount)


@internal
def _deposit(amount: uint256):
    assert amount > 0 and amount <= MASK104, "amount"
    self.free_of[msg.sender] += amount
    before: uint256 = staticcall Token(TOKEN).balanceOf(self)
    assert extcall Token(TOKEN).transferFrom(msg.sender, self, amount, default_return_value=True), "token"
    assert staticcall Token(TOKEN).balanceOf(self) == before + amount, "amount"
    index: uint256 = extcall Stakes(STAKES).enroll(msg.sender)
    log Deposited(client=msg.sender, amount=amount, index=index)


@external
def allocate(coordinator: address, amount: uint256):
    """Puts free deposit aside for one coordinator."""
    assert amount > 0 and self.free_of[msg.sender] >= amount, "amount"
    assert staticcall Stakes(STAKES).role_of(coordinator) == COORDINATOR, "unknown"
    word: uint256 = self.allocations[msg.sender][coordinator]
    if word == 0:
        word = block.timestamp
    assert (word >> 196) + amount <= MASK60, "amount"
    self.free_of[msg.sender] -= amount
    self.allocations[msg.sender][coordinator] = word + (amount << 196)
    self.totals[coordinator] += amount
    log Allocated(client=msg.sender, coordinator=coordinator, amount=amount)


@external
def request_release(coordinator: address, amount: uint256):
    """Announces that up to `amount` of an allocation goes back; a newer request replaces it and its delay starts anew."""
    assert amount > 0 and amount <= MASK104, "amount"
    ready: uint256 = block.timestamp + RELEASE_DELAY
    self.releases[msg.sender][coordinator] = (amount << 48) | ready
    log ReleaseRequested(client=msg.sender, coordinator=coordinator, amount=amount, readyAt=ready)


@external
def finish_release(coordinator: address):
    """After the delay: what the vouchers left of the announced amount is free again."""
    request: uint256 = self.releases[msg.sender][coordinator]
    assert request != 0 and block.timestamp >= request & MASK48, "early"
    word: uint256 = self.allocations[msg.sender][coordinator]
    amount: uint256 = min(request >> 48, (word >> 196) - ((word >> 136) & MASK60))
    self.releases[msg.sender][coordinator] = 0
    self.allocations[msg.sender][coordinator] = word - (amount << 196)
    self.totals[coordinator] -= amount
    self.free_of[msg.sender] += amount
    log Released(client=msg.sender, coordinator=coordinator, amount=amount)


@external
def request_withdrawal(amount: uint256):
    """Announces a withdrawal of free deposit; a newer request replaces it and its delay starts anew."""
    assert amount > 0 and amount <= MASK104, "amount"
    ready: uint256 = block.timestamp + WITHDRAWAL_DELAY
    self.withdrawals[msg.sender] = (amount << 48) | ready
    log WithdrawalRequested(client=msg.sender, amount=amount, readyAt=ready)


@external
@nonreentrant
def finish_withdrawal():
    """After the delay: pays what is free of the announced amount."""
    request: uint256 = self.withdrawals[msg.sender]
    assert request != 0 and block.timestamp >= request & MASK48, "early"
    amount: uint256 = min(request >> 48, self.free_of[msg.sender])
    self.withdrawals[msg.sender] = 0
    self.free_of[msg.sender] -= amount
    assert extcall Token(TOKEN).transfer(msg.sender, amount, default_return_value=True), "token"
    log Withdrawn(client=msg.sender, amount=amount)


# -------------------------------------------------------------------------------------------------------------- epochs


@external
def charge(coordinator: address, debts: DynArray[uint256, LISTED_MAX]) -> Pool:
    """
    @notice Epochs only: cumulative vouchers move money from their clients' allocations to the coordinator's pool.
    @param debts client(160) | cumulative(96) of each voucher
    @return the pool with all of them in it
    """
    assert msg.sender == EPOCHS, "epochs"
    pool: uint256 = self.pools[coordinator]
    for debt: uint256 in debts:
        client: address = convert(debt >> 96, address)
        word: uint256 = self.allocations[client][coordinator]
        charged: uint256 = (word >> 136) & MASK60
        cumulative: uint256 = debt & MASK96
        assert cumulative >= charged, "stale"
        assert cumulative <= word >> 196, "allocation"
        added: uint256 = cumulative - charged
        self.allocations[client][coordinator] = word + (added << 136)
        pool += added << 128
    self.pools[coordinator] = pool
    return self._pool(coordinator, pool)


@external
@nonreentrant
def pay(coordinator: address, payments: DynArray[uint256, LISTED_MAX]):
    """
    @notice Epochs only: claims. Never more leaves a pool than vouchers brought in.
    @param payments receiver(160) | amount(96) of each
    """
    assert msg.sender == EPOCHS, "epochs"
    word: uint256 = self.pools[coordinator]
    amount: uint256 = 0
    for payment: uint256 in payments:
        amount += payment & MASK96
    assert (word & MASK128) + amount <= word >> 128, "pool"
    self.pools[coordinator] = word + amount
    for payment: uint256 in payments:
        assert extcall Token(TOKEN).transfer(convert(payment >> 96, address), payment & MASK96, default_return_value=True), "token"


# --------------------------------------------------------------------------------------------------------------- views


@external
@view
def allocation(client: address, coordinator: address) -> Allocation:
    """One client's allocation for one coordinator."""
    word: uint256 = self.allocations[client][coordinator]
    request: uint256 = self.releases[client][coordinator]
    return Allocation(allocated=word >> 196, charged=(word >> 136) & MASK60, since=word & MASK40, releasing=request >> 48, releaseAt=request & MASK48)


@external
@view
def withdrawal(client: address) -> (uint256, uint256):
    """Announced amount and when it can be finished; zeros when there is none."""
    request: uint256 = self.withdrawals[client]
    return request >> 48, request & MASK48


@external
@view
def pool(coordinator: address) -> Pool:
    """One coordinator's pool."""
    return self._pool(coordinator, self.pools[coordinator])


@internal
@view
def _pool(coordinator: address, word: uint256) -> Pool:
    return Pool(allocated=self.totals[coordinator], charged=word >> 128, paid=word & MASK128)


@external
@view
def allocated_since(client: address, coordinator: address) -> uint256:
    """When this client first allocated to this coordinator; 0 = never. The court asks how old a client is."""
    return self.allocations[client][coordinator] & MASK40


