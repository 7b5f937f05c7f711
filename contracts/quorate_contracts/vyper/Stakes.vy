# pragma version 0.4.3
"""
@title Stakes
@notice The registry: accounts and their index, keys with their validity, stake slots per pool, coordinator bonds.
        Every message of the protocol is signed under this contract's EIP-712 domain (PROTOCOL §2, §3).
@dev No owner and no upgrade: all addresses are fixed at deployment. Only Court and Faults take stake or bond, at most one slot's stake
     each time. Money here = stakes + bonds + what was burned, which the events tell.
"""

import bonds
import draws
import keys
import profiles
import registry
import requests
import signatures
import slot_list

initializes: bonds
initializes: keys
initializes: profiles
initializes: slot_list[profiles := profiles]
initializes: draws[profiles := profiles, slot_list := slot_list]
exports: (bonds.COORDINATOR_BOND, bonds.bond_of, bonds.is_bonded, bonds.bonded_at)
exports: (keys.operator_key, keys.key_valid, keys.key_range)
exports: (profiles.PROFILE_DELAY, profiles.payout_of, profiles.network_of, profiles.out_block, profiles.profile_at, profiles.profile_changes)
exports: (slot_list.slot_count, slot_list.owner_count, slot_list.held, slot_list.open_slots_of)

interface Token:
    def transferFrom(owner: address, receiver: address, amount: uint256) -> bool: nonpayable
    def transfer(receiver: address, amount: uint256) -> bool: nonpayable
    def balanceOf(owner: address) -> uint256: view

PROVIDER: constant(uint256) = 1
COORDINATOR: constant(uint256) = 2
PAGE: constant(uint256) = 64
JURORS: constant(uint256) = 7
DRAWN_MAX: constant(uint256) = 14
PARTIES: constant(uint256) = 3
ADDRESSES_MAX: constant(uint256) = 512

TOKEN: public(immutable(address))
COURT: public(immutable(address))
FAULTS: public(immutable(address))
SLOT_STAKE: public(immutable(uint256))
# 21 d. No case needs to hold a stake back: it ends earlier. Evidence counts until 1 d (the longest job) + 7 d after acceptBy. Then come twice
# 2 d of votes (a window and the job again), 1 d of reveals and 1 d of openings: 14 d. Four beacon rounds may be late, each by 1 d: 18 d
UNBOND_AFTER: public(immutable(uint256))

role_of: public(HashMap[address, uint256])  # 0 = not registered
exited_at: public(HashMap[address, uint256])  # an account leaves once: it opens no slot and restores nothing afterwards
posting_key: public(HashMap[address, address])
stake_of: public(HashMap[address, uint256])  # of slots, open or unbonding
request_nonce: public(HashMap[address, uint256])  # relayed requests of an account so far


@deploy
def __init__(token: address, court: address, faults: address, slotStake: uint256, coordinatorBond: uint256, unbondAfter: uint256,
             profileDelay: uint256):
    """The others are named before they exist; their addresses follow from the deployer's nonces."""
    TOKEN = token
    COURT = court
    FAULTS = faults
    SLOT_STAKE = slotStake
    bonds.__init__(coordinatorBond)
    UNBOND_AFTER = unbondAfter
    profiles.__init__(profileDelay)


# ------------------------------------------------------------------------------------------------------------- accounts


@external
def register(operatorKey: address, payout: address, peerKey: bytes32, boxKey: bytes32, network: bytes32):
    """The sender becomes a provider (and its owner). Peer and box key are only published here: the chain never uses them."""
    self._register(requests.Registration(account=msg.sender, operatorKey=operatorKey, payout=payout, peerKey=peerKey, boxKey=boxKey, network=network))


@external
@nonreentrant
def register_coordinator(statementKey: address, postingKey: address):
    """The sender becomes a coordinator and puts up its bond. An account has one role, so no key can answer for two."""
    assert self.role_of[msg.sender] == 0, "registered"
    assert statementKey != empty(address) and postingKey != empty(address), "zero"
    self.role_of[msg.sender] = COORDINATOR
    self.posting_key[msg.sender] = postingKey
    bonds._begin(msg.sender)
    keys._set_key(msg.sender, statementKey)
    self._pull(msg.sender, bonds.COORDINATOR_BOND)
    log registry.CoordinatorRegistered(account=msg.sender, statementKey=statementKey, postingKey=postingKey)


@external
def rotate_key(key: address):
    """A new operator (or statement) key from this second on; the old one still answers for what it signed, this second included."""
    assert self.role_of[msg.sender] != 0, "registered"
    keys._rotate(msg.sender, key)


@external
def change_payout(payout: address):
    """Where the money of this provider goes, at once. Draws count it after PROFILE_DELAY."""
    self._change_payout(msg.sender, payout)


@external
def change_network(network: bytes32):
    """The network in which this provider is reached. Draws count it after PROFILE_DELAY."""
    assert self.role_of[msg.sender] == PROVIDER, "registered"
    profiles._change_network(msg.sender, network)


@external
def change_posting_key(key: address):
    """Who may pay for this coordinator and announce it. It signs nothing, so it needs no history."""
    assert self.role_of[msg.sender] == COORDINATOR, "registered"
    assert key != empty(address), "zero"
    self.posting_key[msg.sender] = key
    log registry.PostingKeyChanged(account=msg.sender, key=key)


@external
def announce(coordinator: address, peerKey: bytes32, addresses: Bytes[ADDRESSES_MAX]):
    """
    @notice Where peers reach a coordinator, for programs that know only the chain. Sent by its posting key while its bond is here.
    @dev Only logged: the newest one counts, and nothing on chain reads it. The peer key is no proof; the coordinator's statement key
         signs it too, when a peer connects.
    @param addresses multiaddrs, one a line. Bytes and not a string, so that no text can be one that programs fail to decode
    """
    assert self.posting_key[coordinator] == msg.sender, "signer"
    assert bonds.bond_of[coordinator] > 0, "registered"
    log registry.Announced(coordinator=coordinator, peerKey=peerKey, addresses=addresses)


@external
@nonreentrant
def unbond_coordinator():
    """Pays the bond back once the delay has passed. The account keeps its index and its key history."""
    assert self.exited_at[msg.sender] != 0 and block.timestamp >= self.exited_at[msg.sender] + UNBOND_AFTER, "early"
    amount: uint256 = bonds.bond_of[msg.sender]
    assert amount > 0, "amount"
    bonds._set_bond(msg.sender, 0)
    self._pay(msg.sender, amount)
    log registry.Unbonded(account=msg.sender, amount=amount)


# ---------------------------------------------------------------------------------------------------------------- slots


@external
@nonreentrant
def open_slots(pool: bytes32, count: uint256):
    """Opens slots from the next block on. What was burned of held slots is staked again with them."""
    self._open_slots(msg.sender, pool, count)


@external
def close_slot(pool: bytes32, place: uint256):
    """The slot is not drawn from the next block on; its stake answers until it is unbonded."""
    slot_list._close(msg.sender, pool, place, UNBOND_AFTER)


@external
@nonreentrant
def unbond_slot(pool: bytes32, place: uint256):
    """Pays a closed slot's stake back after the delay and frees its place. The first slot that leaves bears what was burned."""
    self._unbond_slot(msg.sender, pool, place)


@external
def exit():
    """Leaves for good: every slot of a provider closes from the next block on; the delay of a coordinator's bond starts."""
    self._exit(msg.sender)


@external
@nonreentrant
def top_up(amount: uint256):
    """Restores what was burned of the sender's stake or bond, without opening a slot."""
    assert self.exited_at[msg.sender] == 0, "exited"
    if self.role_of[msg.sender] == COORDINATOR:
        bonds._restore(msg.sender, amount)
    else:
        assert amount > 0 and self.stake_of[msg.sender] + amount <= slot_list.held[msg.sender] * SLOT_STAKE, "amount"
        self.stake_of[msg.sender] += amount
    self._pull(msg.sender, amount)
    log registry.ToppedUp(account=msg.sender, amount=amount)


# ------------------------------------------------------------------------------------------------------------- requests


@external
def register_for(wanted: requests.Registration, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `register`, signed by the account and sent by anyone, who gets `fee` of the account's tokens."""
    self._take_request(wanted.account, requests._register(wanted, terms), terms, fee, sig)
    self._pay_relayer(wanted.account, fee)
    self._register(wanted)


@external
@nonreentrant
def open_slots_for(account: address, pool: bytes32, count: uint256, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `open_slots`, relayed."""
    self._take_request(account, requests._slots(requests.OPEN_TYPE, account, pool, count, terms), terms, fee, sig)
    self._pay_relayer(account, fee)
    self._open_slots(account, pool, count)


@external
@nonreentrant
def close_slot_for(account: address, pool: bytes32, place: uint256, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `close_slot`, relayed."""
    self._take_request(account, requests._slots(requests.CLOSE_TYPE, account, pool, place, terms), terms, fee, sig)
    self._pay_relayer(account, fee)
    slot_list._close(account, pool, place, UNBOND_AFTER)


@external
@nonreentrant
def unbond_slot_for(account: address, pool: bytes32, place: uint256, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `unbond_slot`, relayed. The fee may come from the stake that is paid back, so it is paid last."""
    self._take_request(account, requests._slots(requests.UNBOND_TYPE, account, pool, place, terms), terms, fee, sig)
    self._unbond_slot(account, pool, place)
    self._pay_relayer(account, fee)


@external
@nonreentrant
def change_payout_for(account: address, payout: address, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `change_payout`, relayed."""
    self._take_request(account, requests._payout(account, payout, terms), terms, fee, sig)
    self._pay_relayer(account, fee)
    self._change_payout(account, payout)


@external
@nonreentrant
def exit_for(account: address, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `exit`, relayed."""
    self._take_request(account, requests._exit(account, terms), terms, fee, sig)
    self._pay_relayer(account, fee)
    self._exit(account)


# ---------------------------------------------------------------------------------------------------------------- modules


@external
@nonreentrant
def burn(account: address, isBond: bool, amount: uint256, reward: uint256, receiver: address) -> uint256:
    """
    @notice Court and Faults only: takes at most `amount` of a provider's stake or a coordinator's bond, and returns what was taken. It is never
            more than one slot's stake. The receiver gets `reward` of it, at most half. The rest stays here, and nothing can move it. Slots stay
            open as long as half of their stake is left.
    """
    assert msg.sender in [COURT, FAULTS], "module"
    taken: uint256 = min(amount, SLOT_STAKE)
    out: uint256 = 0
    if isBond:
        taken = min(taken, bonds.bond_of[account])
        bonds._set_bond(account, bonds.bond_of[account] - taken)
    else:
        taken = min(taken, self.stake_of[account])
        self.stake_of[account] -= taken
        if 2 * self.stake_of[account] < slot_list.held[account] * SLOT_STAKE and slot_list._has_open(account):
            slot_list._close_all(account)
            out = block.number + 1
    paid: uint256 = min(reward, taken // 2)
    self._pay(receiver, paid)
    log registry.Burned(account=account, amount=taken, reward=paid, outBlock=out)
    return taken


# ---------------------------------------------------------------------------------------------------------------- views


@external
@view
def domain_separator() -> bytes32:
    """EIP-712 domain of every message; recomputed, so that a forked chain gets its own."""
    return keccak256(abi_encode(
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
        keccak256("Quorate"), keccak256("1"), chain.id, self))


@external
@view
def slot(pool: bytes32, place: uint256) -> registry.Slot:
    """One place of the list; owner zero when it is free."""
    return self._slot(pool, place)


@external
@view
def slot_page(pool: bytes32, start: uint256) -> DynArray[registry.Slot, PAGE]:
    """Up to 64 places from `start`."""
    page: DynArray[registry.Slot, PAGE] = []
    for i: uint256 in range(PAGE):
        if start + i >= slot_list.slot_count[pool]:
            break
        page.append(self._slot(pool, start + i))
    return page


@external
@view
def owners_apart(pool: bytes32, parties: address[PARTIES]) -> (uint256, uint256):
    """Owners with open slots in a class, without the parties of a case, and the length of the class's list."""
    count: uint256 = slot_list.owner_count[pool]
    for i: uint256 in range(PARTIES):
        isAgain: bool = (i > 0 and parties[i] == parties[0]) or (i > 1 and parties[i] == parties[1])
        if not isAgain and slot_list.open_in[parties[i]][pool] > 0:
            count -= 1
    return count, slot_list.slot_count[pool]


@external
@view
def draw(lot: registry.Lot, want: uint256, start: uint256, parties: address[PARTIES], drawn: DynArray[address, DRAWN_MAX]) -> (DynArray[address, JURORS], uint256):
    """Up to `want` owners, and the try with which the next call goes on; see `draws`."""
    return draws._draw(lot, want, start, parties, drawn)


# ------------------------------------------------------------------------------------------------------------- internal


@internal
def _register(wanted: requests.Registration):
    account: address = wanted.account
    assert self.role_of[account] == 0, "registered"
    assert wanted.operatorKey != empty(address), "zero"
    self.role_of[account] = PROVIDER
    profiles._set_payout(account, wanted.payout, self.role_of[wanted.payout] != 0)
    profiles._set_network(account, wanted.network, 0)
    keys._set_key(account, wanted.operatorKey)
    log registry.Registered(account=account, operatorKey=wanted.operatorKey, payout=wanted.payout, peerKey=wanted.peerKey,
                            boxKey=wanted.boxKey, network=wanted.network)


@internal
def _change_payout(account: address, payout: address):
    assert self.role_of[account] == PROVIDER, "registered"
    profiles._change_payout(account, payout, self.role_of[payout] != 0)


@internal
def _open_slots(account: address, pool: bytes32, count: uint256):
    assert self.role_of[account] == PROVIDER, "registered"
    assert self.exited_at[account] == 0, "exited"
    slot_list._open(account, pool, count)
    missing: uint256 = slot_list.held[account] * SLOT_STAKE - self.stake_of[account]
    self.stake_of[account] += missing
    self._pull(account, missing)


@internal
def _unbond_slot(account: address, pool: bytes32, place: uint256):
    slot_list._free(account, pool, place, UNBOND_AFTER)
    rest: uint256 = slot_list.held[account] * SLOT_STAKE
    amount: uint256 = 0
    if self.stake_of[account] > rest:
        amount = self.stake_of[account] - rest
    self.stake_of[account] -= amount
    self._pay(account, amount)
    log registry.Unbonded(account=account, amount=amount)


@internal
def _exit(account: address):
    """What must hold: the account has a role and did not leave before."""
    assert self.role_of[account] != 0, "registered"
    assert self.exited_at[account] == 0, "exited"
    self.exited_at[account] = block.timestamp
    if slot_list._has_open(account):
        slot_list._close_all(account)
    log registry.Exited(account=account)


@internal
def _take_request(account: address, structHash: bytes32, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """Takes a request once. Then the relayer is paid first: one that cannot be paid has spent little gas."""
    requests._check(account, structHash, terms, fee, self.request_nonce[account], sig)
    self.request_nonce[account] += 1


@internal
def _pay_relayer(account: address, fee: uint256):
    if fee > 0:
        assert extcall Token(TOKEN).transferFrom(account, msg.sender, fee, default_return_value=True), "token"


@internal
@view
def _slot(pool: bytes32, place: uint256) -> registry.Slot:
    owner: address = empty(address)
    start: uint256 = 0
    end: uint256 = 0
    owner, start, end = slot_list._range(pool, place)
    return registry.Slot(owner=owner, operatorKey=keys.operator_key[owner], payout=profiles.payout_of[owner], network=profiles._network(profiles.owners[owner]), fromBlock=start, untilBlock=end)


@internal
def _pull(owner: address, amount: uint256):
    """Tokens in; a token that rebases or takes a fee on transfer is refused."""
    before: uint256 = staticcall Token(TOKEN).balanceOf(self)
    assert extcall Token(TOKEN).transferFrom(owner, self, amount, default_return_value=True), "token"
    assert staticcall Token(TOKEN).balanceOf(self) == before + amount, "amount"


@internal
def _pay(receiver: address, amount: uint256):
    if amount > 0:
        assert extcall Token(TOKEN).transfer(receiver, amount, default_return_value=True), "token"
