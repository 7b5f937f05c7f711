"""Posting Merkle-sum roots with vouchers, and claims against the newest final one (PROTOCOL §6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.call import Call, Contract, Query, words
from quorate_protocol.envelope import Envelope
from quorate_protocol.epoch import Leaf, Node, Proof
from quorate_protocol.messages import Session, Voucher
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds

VOUCHERS_MAX = 64


@dataclass(frozen=True, slots=True)
class SignedVoucher:
    """A voucher with the session that proves its key. Both are for the posting coordinator."""

    session: Envelope[Session]
    voucher: Envelope[Voucher]


@dataclass(frozen=True, slots=True)
class Epoch:
    """One posted epoch; number 0 = there is none."""

    root: Hash32
    number: int
    posted_at: UnixSeconds
    sum_final: Amount
    sum_held: Amount


@dataclass(frozen=True, slots=True)
class Epochs(Contract):
    """Settlement."""

    NAME: ClassVar[str] = "Epochs"

    def post(self, coordinator: Address, number: int, root: Node, vouchers: Sequence[SignedVoucher]) -> Call:
        """Sent by the coordinator's posting key; `number` follows the newest, `root` is `epoch.build` of all its leaves."""
        assert len(vouchers) <= VOUCHERS_MAX, f"at most {VOUCHERS_MAX} vouchers in one epoch"
        listed = [_voucher_words(coordinator, each) for each in vouchers]
        return self._call("post", 250_000 + 25_000 * len(listed), coordinator, number, root.hash, root.final, root.held, listed)

    def claim(self, coordinator: Address, number: int, leaf: Leaf, proof: Proof) -> Call:
        """Pays `leaf.final` less what was claimed before, to the payout address. `number` is the newest final epoch's."""
        siblings = [(node.hash, node.final, node.held) for node in proof.siblings]
        arguments = (leaf.index, leaf.account, leaf.final, leaf.held, leaf.receipts_root, proof.position, siblings)
        return self._call("claim", 220_000 + 4_000 * len(siblings), coordinator, number, *arguments)

    def newest(self, coordinator: Address) -> Query[int]:
        """Number of the newest posted epoch; 0 before the first."""
        return self._query("newest", int, coordinator)

    def newest_final(self, coordinator: Address) -> Query[Epoch]:
        """The epoch that claims are paid against, by the queried block's time."""
        return self._query("newest_final", Epoch, coordinator)

    def epoch(self, coordinator: Address, number: int) -> Query[Epoch]:
        """One of the 32 newest epochs."""
        return self._query("epoch", Epoch, coordinator, number)

    def claimed(self, coordinator: Address, account: Address) -> Query[Amount]:
        """What an account has claimed so far."""
        return self._query("claimed", Amount, coordinator, account)


def _voucher_words(coordinator: Address, signed: SignedVoucher) -> tuple[object, ...]:
    session, voucher = signed.session.message, signed.voucher.message
    assert session.coordinator == voucher.coordinator == coordinator and session.client == voucher.client, "session and voucher differ"
    proof = (session.client, session.session_key, session.up_to, session.expires, words(signed.session.sig))
    return (*proof, voucher.cumulative, voucher.nonce_floor, words(signed.voucher.sig))
