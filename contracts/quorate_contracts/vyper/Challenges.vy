# pragma version 0.4.3
"""
@title Challenges
@notice Voids epochs that pay less than their coordinator signed or showed before, and halts coordinators that vanished (PROTOCOL §6).
@dev Money here = bonds of open demands + credits + `pots` of halted coordinators + `burned`, which nothing can move. Nobody is paid by a
     transfer but by `withdraw`, so that no receiver can make a challenge fail.
"""

import leaves
import signatures

interface Token:
    def transferFrom(owner: address, receiver: address, amount: uint256) -> bool: nonpayable
    def transfer(receiver: address, amount: uint256) -> bool: nonpayable
    def balanceOf(owner: address) -> uint256: view

interface Stakes:
    def key_range(account: address, key: address) -> (uint256, uint256): view
    def payout_of(account: address) -> address: view
    def bond_of(account: address) -> uint256: view
    def freeze(account: address): nonpayable
    def unfreeze(account: address): nonpayable
    def slash(account: address, amount: uint256) -> uint256: nonpayable

interface Epochs:
    def epoch(coordinator: address, number: uint256) -> leaves.Epoch: view
    def newest_valid(coordinator: address) -> leaves.Epoch: view
    def newest_final(coordinator: address) -> leaves.Epoch: view
    def halted_at(coordinator: address) -> uint256: view
    def hold(coordinator: address, number: uint256): nonpayable
    def lift(coordinator: address, number: uint256): nonpayable
    def void(coordinator: address, number: uint256): nonpayable
    def halt(coordinator: address): nonpayable

struct Statement:
    provider: address
    final: uint128
    held: uint128
    epoch: uint64
    seq: uint64
    receiptsRoot: bytes32

struct Demand:
    due: uint256  # final credit that must be shown
    answerBy: uint256  # 0 = none is open
    demander: address

struct EpochDemand:
    epoch: uint256  # number that a valid epoch must reach
    postBy: uint256  # 0 = none is open
    demander: address

struct Filing:
    promised: uint256  # by a Statement
    credited: uint256  # by the last epoch, as far as shown here
    shortage: uint256

event Punished:
    coordinator: indexed(address)
    account: indexed(address)  # who lost by it; nobody's when the coordinator revoked its own
    epoch: uint256
    taken: uint256
    toAccount: uint256

event LeafDemanded:
    coordinator: indexed(address)
    account: indexed(address)
    epoch: uint256
    due: uint256
    answerBy: uint256

event DemandClosed:
    coordinator: indexed(address)
    account: indexed(address)
    epoch: uint256
    isAnswered: bool

event EpochDemanded:
    coordinator: indexed(address)
    epoch: uint256
    postBy: uint256

event Filed:
    coordinator: indexed(address)
    account: indexed(address)
    shortage: uint256

DEPTH_MAX: constant(uint256) = 32
MASK128: constant(uint256) = 2**128 - 1
STATEMENT_TYPE: constant(bytes32) = keccak256("Statement(address provider,uint128 final,uint128 held,uint64 epoch,uint64 seq,bytes32 receiptsRoot)")

TOKEN: public(immutable(address))
STAKES: public(immutable(address))
EPOCHS: public(immutable(address))
GAS_FEE: public(immutable(uint256))
VOID_PENALTY: public(immutable(uint256))
RESPONSE_TIME: public(immutable(uint256))
HALT_AFTER: public(immutable(uint256))
HALT_SETTLE: public(immutable(uint256))

credits: public(HashMap[address, uint256])
burned: public(uint256)
demands: HashMap[address, HashMap[uint256, HashMap[address, Demand]]]  # coordinator -> epoch -> account
epoch_demands: HashMap[address, EpochDemand]
pots: public(HashMap[address, uint256])  # of a halted coordinator: for those to whom it owed more than its last epoch shows
filings: HashMap[address, HashMap[address, Filing]]  # coordinator -> account
shortages: public(HashMap[address, uint256])  # of all filings


@deploy
def __init__(token: address, stakes: address, epochs: address, gasFee: uint256, voidPenalty: uint256, responseTime: uint256, haltAfter: uint256, haltSettle: uint256):
    """Addresses of the deployment; times in seconds, amounts in token units."""
    TOKEN = token
    STAKES = stakes
    EPOCHS = epochs
    GAS_FEE = gasFee
    VOID_PENALTY = voidPenalty
    RESPONSE_TIME = responseTime
    HALT_AFTER = haltAfter
    HALT_SETTLE = haltSettle


# ---------------------------------------------------------------------------------------------------------- challenges


@external
def challenge_statement(coordinator: address, number: uint256, statement: Statement, sig: signatures.Sig, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice A leaf is below what a Statement for this epoch or an earlier one promised. What vouchers do not cover may be shown as held, but
            only once all that they cover is final.
    """
    self._check_statement(coordinator, statement, sig)
    assert convert(statement.epoch, uint256) <= number, "epoch"
    assert leaf.account == statement.provider, "account"
    epoch: leaves.Epoch = self._shown(coordinator, number, leaf, position, proof)
    due: uint256 = convert(statement.final, uint256)
    final: uint256 = leaf.sums >> 128
    assert final < due and (not epoch.isExhausted or final + (leaf.sums & MASK128) < due), "covered"
    self._punish(coordinator, number, leaf.account, due - final)


@external
def challenge_leaf(coordinator: address, number: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX],
                   oldNumber: uint256, oldLeaf: leaves.Leaf, oldPosition: uint256, oldProof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice The final credit of an account fell between two epochs that are not void.
    """
    assert oldNumber < number, "epoch"
    assert leaf.account == oldLeaf.account, "account"
    epoch: leaves.Epoch = self._shown(coordinator, number, leaf, position, proof)
    epoch = self._shown(coordinator, oldNumber, oldLeaf, oldPosition, oldProof)
    final: uint256 = leaf.sums >> 128
    assert final < oldLeaf.sums >> 128, "covered"
    self._punish(coordinator, number, leaf.account, (oldLeaf.sums >> 128) - final)


@external
@nonreentrant
def demand_leaf(coordinator: address, number: uint256, statement: Statement, sig: signatures.Sig):
    """
    @notice Asks a coordinator to show, for a bond, that an epoch or a later one pays what it stated. Until then neither becomes final.
    """
    self._check_statement(coordinator, statement, sig)
    assert convert(statement.epoch, uint256) <= number, "epoch"
    self._demand(coordinator, number, statement.provider, convert(statement.final, uint256))


@external
@nonreentrant
def demand_old_leaf(coordinator: address, number: uint256, oldNumber: uint256, oldLeaf: leaves.Leaf, oldPosition: uint256, oldProof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice `demand_leaf` of an account that has no Statement, by its leaf in an older epoch.
    """
    assert oldNumber < number, "epoch"
    epoch: leaves.Epoch = self._shown(coordinator, oldNumber, oldLeaf, oldPosition, oldProof)
    self._demand(coordinator, number, oldLeaf.account, oldLeaf.sums >> 128)


@external
def answer(coordinator: address, number: uint256, account: address, shownIn: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice The leaf that was demanded of epoch `number`, in this epoch or in a later one that is not void. Anyone may send it; the
            bond goes to the coordinator.
    """
    demand: Demand = self.demands[coordinator][number][account]
    assert demand.answerBy != 0, "phase"
    assert block.timestamp <= demand.answerBy, "late"
    assert shownIn >= number, "epoch"
    assert leaf.account == account, "account"
    epoch: leaves.Epoch = self._shown(coordinator, shownIn, leaf, position, proof)
    assert leaf.sums >> 128 >= demand.due, "amount"
    self._close(coordinator, number, account, coordinator, True)


@external
def close_demand(coordinator: address, number: uint256, account: address):
    """
    @notice Nobody answered in time: the epoch is void. If it is void already, the demander only gets its bond back.
    """
    demand: Demand = self.demands[coordinator][number][account]
    assert demand.answerBy != 0, "phase"
    epoch: leaves.Epoch = staticcall Epochs(EPOCHS).epoch(coordinator, number)
    if epoch.number == number:
        assert block.timestamp > demand.answerBy, "early"
        self._punish(coordinator, number, account, demand.due)
    self._close(coordinator, number, account, demand.demander, False)


@external
def revoke(number: uint256):
    """
    @notice A coordinator takes back its own epochs from this one on: another holder of its posting key posted them. It loses the
            penalty as for any void epoch, and nobody gets it: else a thief caught in time would lose nothing.
    """
    assert staticcall Epochs(EPOCHS).halted_at(msg.sender) == 0, "halted"
    extcall Epochs(EPOCHS).void(msg.sender, number)
    taken: uint256 = extcall Stakes(STAKES).slash(msg.sender, VOID_PENALTY)
    self.burned += taken
    log Punished(coordinator=msg.sender, account=empty(address), epoch=number, taken=taken, toAccount=0)


# ---------------------------------------------------------------------------------------------------------------- halts


@external
@nonreentrant
def demand_epoch(coordinator: address, statement: Statement, sig: signatures.Sig):
    """
    @notice Asks a coordinator, for a bond, to post the epoch for which it signed a Statement. One demand a coordinator is open at a time.
    """
    self._check_statement(coordinator, statement, sig)
    assert staticcall Epochs(EPOCHS).halted_at(coordinator) == 0, "halted"
    assert self.epoch_demands[coordinator].postBy == 0, "phase"
    assert statement.final > 0, "amount"  # else there may be no credit at all, and so no epoch to post
    number: uint256 = convert(statement.epoch, uint256)
    newest: leaves.Epoch = staticcall Epochs(EPOCHS).newest_valid(coordinator)
    assert newest.number < number, "covered"
    postBy: uint256 = block.timestamp + HALT_AFTER
    self.epoch_demands[coordinator] = EpochDemand(epoch=number, postBy=postBy, demander=msg.sender)
    self._pull(GAS_FEE)
    extcall Stakes(STAKES).freeze(coordinator)
    log EpochDemanded(coordinator=coordinator, epoch=number, postBy=postBy)


@external
def close_epoch_demand(coordinator: address):
    """
    @notice The epoch that was demanded, or a later one, is final. The bond goes to the coordinator.
    """
    demand: EpochDemand = self.epoch_demands[coordinator]
    assert demand.postBy != 0, "phase"
    newest: leaves.Epoch = staticcall Epochs(EPOCHS).newest_final(coordinator)
    assert newest.number >= demand.epoch, "early"
    self.epoch_demands[coordinator] = empty(EpochDemand)
    extcall Stakes(STAKES).unfreeze(coordinator)
    self.credits[coordinator] += GAS_FEE


@external
def halt(coordinator: address):
    """
    @notice No epoch that is not void answers the demand: the coordinator posts none any more, and its whole bond is taken. Half of it
            is for those who file a Statement above the last epoch.
    """
    demand: EpochDemand = self.epoch_demands[coordinator]
    assert demand.postBy != 0, "phase"
    assert block.timestamp > demand.postBy, "early"
    newest: leaves.Epoch = staticcall Epochs(EPOCHS).newest_valid(coordinator)
    assert newest.number < demand.epoch, "covered"
    self.epoch_demands[coordinator] = empty(EpochDemand)
    extcall Stakes(STAKES).unfreeze(coordinator)
    extcall Epochs(EPOCHS).halt(coordinator)
    taken: uint256 = 0
    bond: uint256 = staticcall Stakes(STAKES).bond_of(coordinator)
    if bond > 0:
        taken = extcall Stakes(STAKES).slash(coordinator, bond)
    fee: uint256 = min(GAS_FEE, taken)
    self.credits[msg.sender] += fee
    self.credits[demand.demander] += GAS_FEE
    pot: uint256 = (taken - fee) // 2
    self.pots[coordinator] = pot
    self.burned += taken - fee - pot


@external
def file(coordinator: address, statement: Statement, sig: signatures.Sig):
    """
    @notice What a halted coordinator promised to an account. Counts less what `credit_filing` shows of its leaf.
    """
    self._check_statement(coordinator, statement, sig)
    at: uint256 = staticcall Epochs(EPOCHS).halted_at(coordinator)
    assert at != 0, "phase"
    assert block.timestamp <= at + HALT_SETTLE, "late"
    filing: Filing = self.filings[coordinator][statement.provider]
    assert convert(statement.final, uint256) > filing.promised, "stale"
    filing.promised = convert(statement.final, uint256)
    self._set_filing(coordinator, statement.provider, filing)


@external
def credit_filing(coordinator: address, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice The account's leaf in the last epoch of a halted coordinator, which lowers its shortage. Anyone may send it.
    """
    at: uint256 = staticcall Epochs(EPOCHS).halted_at(coordinator)
    assert at != 0, "phase"
    assert block.timestamp <= at + HALT_SETTLE + RESPONSE_TIME, "late"
    last: leaves.Epoch = staticcall Epochs(EPOCHS).newest_valid(coordinator)
    newest: leaves.Epoch = staticcall Epochs(EPOCHS).newest_final(coordinator)
    assert newest.number == last.number, "early"
    last = self._shown(coordinator, last.number, leaf, position, proof)
    filing: Filing = self.filings[coordinator][leaf.account]
    assert leaf.sums >> 128 > filing.credited, "stale"
    filing.credited = leaf.sums >> 128
    self._set_filing(coordinator, leaf.account, filing)


@external
def take_share(coordinator: address, account: address):
    """
    @notice A filing's share of the bond of a halted coordinator, at most its shortage.
    """
    at: uint256 = staticcall Epochs(EPOCHS).halted_at(coordinator)
    assert at != 0 and block.timestamp > at + HALT_SETTLE + RESPONSE_TIME, "early"
    shortage: uint256 = self.filings[coordinator][account].shortage
    assert shortage > 0, "amount"
    self.filings[coordinator][account].shortage = 0
    self.credits[self._receiver(account)] += min(shortage, self.pots[coordinator] * shortage // self.shortages[coordinator])


@external
@nonreentrant
def withdraw(account: address):
    """
    @notice Pays an account's credits to it. Anyone may send it.
    """
    amount: uint256 = self.credits[account]
    assert amount > 0, "amount"
    self.credits[account] = 0
    assert extcall Token(TOKEN).transfer(account, amount, default_return_value=True), "token"


# --------------------------------------------------------------------------------------------------------------- views


@external
@view
def demand(coordinator: address, number: uint256, account: address) -> Demand:
    """The open demand for an account's leaf; zeros when there is none."""
    return self.demands[coordinator][number][account]


@external
@view
def epoch_demand(coordinator: address) -> EpochDemand:
    """The open demand for an epoch; zeros when there is none."""
    return self.epoch_demands[coordinator]


@external
@view
def filing(coordinator: address, account: address) -> Filing:
    """What a halted coordinator owed an account beyond its last epoch."""
    return self.filings[coordinator][account]


# ------------------------------------------------------------------------------------------------------------- internal


@internal
@view
def _check_statement(coordinator: address, statement: Statement, sig: signatures.Sig):
    """Signed by a key that was ever the coordinator's: a Statement has no time, and a new key frees it from no promise."""
    body: bytes32 = keccak256(abi_encode(STATEMENT_TYPE, statement.provider, statement.final, statement.held, statement.epoch, statement.seq, statement.receiptsRoot))
    key: address = signatures._signer(signatures._digest(signatures._domain(STAKES), body), sig)
    since: uint256 = 0
    until: uint256 = 0
    since, until = staticcall Stakes(STAKES).key_range(coordinator, key)
    assert until != 0, "signer"


@internal
@view
def _shown(coordinator: address, number: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]) -> leaves.Epoch:
    """An epoch that is not void, after the check that it has this leaf."""
    epoch: leaves.Epoch = staticcall Epochs(EPOCHS).epoch(coordinator, number)
    assert number > 0 and epoch.number == number, "epoch"
    leaves._check_inclusion(epoch.root, epoch.sumFinal, epoch.sumHeld, leaves._node(leaf), position, proof)
    return epoch


@internal
def _demand(coordinator: address, number: uint256, account: address, due: uint256):
    assert self.demands[coordinator][number][account].answerBy == 0, "phase"
    assert due > 0, "amount"
    extcall Epochs(EPOCHS).hold(coordinator, number)
    answerBy: uint256 = block.timestamp + RESPONSE_TIME
    self.demands[coordinator][number][account] = Demand(due=due, answerBy=answerBy, demander=msg.sender)
    self._pull(GAS_FEE)
    extcall Stakes(STAKES).freeze(coordinator)
    log LeafDemanded(coordinator=coordinator, account=account, epoch=number, due=due, answerBy=answerBy)


@internal
def _close(coordinator: address, number: uint256, account: address, receiver: address, isAnswered: bool):
    """Ends a demand; `receiver` gets its bond."""
    self.demands[coordinator][number][account] = empty(Demand)
    extcall Epochs(EPOCHS).lift(coordinator, number)
    extcall Stakes(STAKES).unfreeze(coordinator)
    self.credits[receiver] += GAS_FEE
    log DemandClosed(coordinator=coordinator, account=account, epoch=number, isAnswered=isAnswered)


@internal
def _punish(coordinator: address, number: uint256, account: address, shortage: uint256):
    """Voids an epoch. Of the penalty the sender gets its gas, the account what it lacks at most; the rest is burned."""
    extcall Epochs(EPOCHS).void(coordinator, number)
    taken: uint256 = extcall Stakes(STAKES).slash(coordinator, VOID_PENALTY)
    fee: uint256 = min(GAS_FEE, taken)
    amount: uint256 = min(taken - fee, shortage)
    self.credits[msg.sender] += fee
    self.credits[self._receiver(account)] += amount
    self.burned += taken - fee - amount
    log Punished(coordinator=coordinator, account=account, epoch=number, taken=taken, toAccount=amount)


@internal
def _set_filing(coordinator: address, account: address, filing: Filing):
    before: uint256 = filing.shortage
    filing.shortage = filing.promised - min(filing.promised, filing.credited)
    self.shortages[coordinator] = self.shortages[coordinator] + filing.shortage - before
    self.filings[coordinator][account] = filing
    log Filed(coordinator=coordinator, account=account, shortage=filing.shortage)


@internal
@view
def _receiver(account: address) -> address:
    payout: address = staticcall Stakes(STAKES).payout_of(account)
    return account if payout == empty(address) else payout


@internal
def _pull(amount: uint256):
    """A bond of the sender in; a token that rebases or takes a fee on transfer is refused."""
    before: uint256 = staticcall Token(TOKEN).balanceOf(self)
    assert extcall Token(TOKEN).transferFrom(msg.sender, self, amount, default_return_value=True), "token"
    assert staticcall Token(TOKEN).balanceOf(self) == before + amount, "amount"
