"""What callers of the typed calls need beside them: messages as arguments, and bounds of lists."""

from collections.abc import Iterable

from quorate_contracts.generated.escrow import EscrowSession, EscrowVoucher
from quorate_contracts.generated.stakes import Slot
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.ports import BeaconRound
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount
from quorate_runtime.keys.bls import signature_words, words_bytes

OPEN_MAX = 16  # slots that one transaction opens
OPEN_BLOCK = 2**32 - 1  # `until_block` of a slot that is open
SLOT_PAGE = 64  # slots that `slot_page` returns
ADDRESSES_BYTES_MAX = 512  # of an announcement
PAIRS_MAX = 256  # of a payroll, of locks
DRAWS_MAX = 128  # of `draw_many`, with a token that costs much gas
VOUCHERS_MAX, SESSIONS_MAX = 64, 16  # of one redemption
AMOUNT_BITS = 96


def pair(account: Address, amount: Amount) -> Amount:
    """Returns an account and an amount in one word, as payrolls and locks list them."""
    assert not amount >> AMOUNT_BITS, "an amount has 96 bits"
    return Amount(int.from_bytes(account, "big") << AMOUNT_BITS | amount)


def pairs(amounts: Iterable[tuple[Address, Amount]]) -> list[Amount]:
    return [pair(account, amount) for account, amount in amounts]


def read_pair(word: int) -> tuple[Address, Amount]:
    account = (word >> AMOUNT_BITS).to_bytes(len(ZERO_ADDRESS), "big")
    return Address(account), Amount(word & (1 << AMOUNT_BITS) - 1)


def voucher(signed: Envelope[Voucher]) -> EscrowVoucher:
    return EscrowVoucher(pair(signed.message.payer, signed.message.cumulative), signed.sig)


def session(signed: Envelope[Session]) -> EscrowSession:
    body = signed.message
    return EscrowSession(body.client, body.session_key, body.up_to, body.expires, signed.sig)


def round_proof(proven: BeaconRound) -> bytes:
    return words_bytes(signature_words(proven.signature))


def is_active(slot: Slot, block: int) -> bool:
    """Whether a draw as of this block may choose a slot."""
    return slot.owner != ZERO_ADDRESS and slot.from_block <= block < slot.until_block
