# pragma version 0.4.3
"""
@title TestToken
@notice The stablecoin of devnets and tests: ERC-20, six decimals. With FAUCET anyone mints; without it only the constructor does.
"""

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    amount: uint256

event Approval:
    owner: indexed(address)
    spender: indexed(address)
    amount: uint256

name: public(constant(String[16])) = "Quorate Test USD"
symbol: public(constant(String[4])) = "qUSD"
decimals: public(constant(uint8)) = 6
FAUCET: public(immutable(bool))

totalSupply: public(uint256)
balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])


@deploy
def __init__(faucet: bool, supply: uint256):
    """Mints `supply` to the deployer; `faucet` lets everybody mint."""
    FAUCET = faucet
    self._mint(msg.sender, supply)


@external
def mint(receiver: address, amount: uint256):
    """Faucet. Refused on a deployment without one."""
    assert FAUCET, "faucet"
    self._mint(receiver, amount)


@external
def approve(spender: address, amount: uint256) -> bool:
    """Lets `spender` move up to `amount`; the largest uint256 never runs down."""
    self.allowance[msg.sender][spender] = amount
    log Approval(owner=msg.sender, spender=spender, amount=amount)
    return True


@external
def transfer(receiver: address, amount: uint256) -> bool:
    """Moves own tokens."""
    self._move(msg.sender, receiver, amount)
    return True


@external
def transferFrom(owner: address, receiver: address, amount: uint256) -> bool:
    """Moves tokens that were approved."""
    allowed: uint256 = self.allowance[owner][msg.sender]
    assert allowed >= amount, "allowance"
    if allowed != max_value(uint256):
        self.allowance[owner][msg.sender] = allowed - amount
    self._move(owner, receiver, amount)
    return True


@internal
def _mint(receiver: address, amount: uint256):
    self.totalSupply += amount
    self.balanceOf[receiver] += amount
    log Transfer(sender=empty(address), receiver=receiver, amount=amount)


@internal
def _move(owner: address, receiver: address, amount: uint256):
    assert receiver != empty(address), "receiver"
    assert self.balanceOf[owner] >= amount, "balance"
    self.balanceOf[owner] -= amount
    self.balanceOf[receiver] += amount
    log Transfer(sender=owner, receiver=receiver, amount=amount)
