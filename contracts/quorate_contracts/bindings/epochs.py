"""The Epochs contract: coordinators post Merkle-sum roots with vouchers, and accounts claim
against the newest final root (PROTOCOL §6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from msgspec import Struct

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, prove
from quorate_protocol.rules.settlement import signable
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds

VOUCHERS_MAX = 64
ADDRESSES_BYTES_MAX = 512  # of one announcement, with the ends of lines
LEAVES_MAX = 64  # of one claim_many; a power of two, so that every part of a tree is one subtree
_EXPIRES_MAX = 2**36 - 1  # the contract stores no later expiry of a session


class SignedVoucher(Struct, frozen=True):
    """A voucher with the session that proves its key. Both name the posting coordinator."""

    session: Envelope[Session]
    voucher: Envelope[Voucher]


@dataclass(frozen=True, slots=True)
class KnownSession:
    """The session of a client with one coordinator that the chain stores. All zero if it stores
    none.
    """

    session_key: Address
    up_to: Amount
    expires: UnixSeconds

    def is_of(self, session: Session) -> bool:
        """Whether posting this session again would change nothing."""
        terms = (session.session_key, signable(session), min(session.expires, _EXPIRES_MAX))
        return (self.session_key, self.up_to, self.expires) == terms


NOTHING_KNOWN: Mapping[Address, KnownSession] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Epoch:
    """One posted epoch. Number 0 means that there is none."""

    root: Hash32
    number: int
    posted_at: UnixSeconds
    sum_final: Amount
    sum_held: Amount


@dataclass(frozen=True, slots=True)
class Epochs(Contract):
    """Settles what coordinators owe: takes epochs with vouchers, and pays claims."""

    NAME: ClassVar[str] = "Epochs"

    def post(
        self,
        coordinator: Address,
        number: int,
        root: Node,
        vouchers: Sequence[SignedVoucher],
        known: Mapping[Address, KnownSession] = NOTHING_KNOWN,
    ) -> Call:
        """Posts an epoch. The coordinator's posting key sends it. `number` follows the newest, and
        `root` is `epoch_tree.build` of all its leaves.

        `known` holds the answers of `session`, by client. A session that the chain stores is not
        sent and proven again, which saves about 7,000 gas. Only this coordinator's posts change
        what is stored, so an answer stays true until the next post.
        """
        assert len(vouchers) <= VOUCHERS_MAX, f"at most {VOUCHERS_MAX} vouchers in one epoch"
        assert len({each.voucher.message.payer for each in vouchers}) == len(vouchers), (
            "one voucher a client: vouchers are cumulative"
        )
        for each in vouchers:
            session, voucher = each.session.message, each.voucher.message
            is_one_matter = (
                session.coordinator == voucher.payee == coordinator
                and session.client == voucher.payer
            )
            assert is_one_matter, "session and voucher differ"
        new = [
            _session_words(each) for each in vouchers if not _is_known(each.session.message, known)
        ]
        gas = 190_000 + 20_000 * len(vouchers) + 35_000 * len(new)
        arguments = (
            root.hash,
            root.final,
            root.held,
            new,
            [_voucher_words(each) for each in vouchers],
        )
        return self._call("post", gas, coordinator, number, *arguments)

    def claim(self, coordinator: Address, number: int, leaf: Leaf, proof: Proof) -> Call:
        """Pays `leaf.final` less what was claimed before, to the payout address. `number` is the
        newest final epoch's.
        """
        siblings = [sibling_words(node) for node in proof.siblings]
        return self._call(
            "claim",
            230_000 + 4_000 * len(siblings),
            coordinator,
            number,
            leaf_words(leaf),
            proof.position,
            siblings,
        )

    def claim_all(self, coordinator: Address, number: int, leaves: Sequence[Leaf]) -> list[Call]:
        """Claims for every leaf of the newest final epoch, `LEAVES_MAX` in one call. It takes a
        third of the gas of single claims.
        """
        return [
            self.claim_part(coordinator, number, leaves, start, LEAVES_MAX)
            for start in range(0, len(leaves), LEAVES_MAX)
        ]

    def claim_part(
        self, coordinator: Address, number: int, leaves: Sequence[Leaf], start: int, size: int
    ) -> Call:
        """Claims for `size` leaves of an epoch, from the `start`th by index on. They must be a
        subtree: `size` is a power of two of at most `LEAVES_MAX`, and `start` a multiple of it.

        Anyone may send it. If no leaf has new credit, the call is refused ("amount"). Otherwise
        leaves without new credit are skipped. If the token does not pay one leaf, the whole call
        is refused.
        """
        ordered = sorted(leaves, key=lambda leaf: leaf.index)
        part = ordered[start : start + size]
        # The subtree is as high as its leaves need; the proof of its first leaf goes on from there.
        height = (len(part) - 1).bit_length()
        _, proof = prove(ordered, part[0].account)
        siblings = [sibling_words(node) for node in proof.siblings[height:]]
        gas = 180_000 + 70_000 * len(part) + 4_000 * len(siblings)
        listed = [leaf_words(leaf) for leaf in part]
        return self._call(
            "claim_many", gas, coordinator, number, listed, proof.position >> height, siblings
        )

    def announce(self, coordinator: Address, peer_key: Hash32, addresses: Sequence[str]) -> Call:
        """Tells everybody where peers reach a coordinator. Its posting key sends it.

        `addresses` are multiaddrs without /p2p/..., of 512 bytes together.
        """
        text = "\n".join(addresses).encode("ascii")
        assert len(text) <= ADDRESSES_BYTES_MAX, "more addresses than an announcement takes"
        return self._call("announce", 80_000, coordinator, peer_key, text)

    def newest(self, coordinator: Address) -> Query[int]:
        """Number of the newest posted epoch; 0 before the first."""
        return self._query("newest", int, coordinator)

    def newest_final(self, coordinator: Address) -> Query[Epoch]:
        """The epoch that claims are paid against, at the queried block's time."""
        return self._query("newest_final", Epoch, coordinator)

    def epoch(self, coordinator: Address, number: int) -> Query[Epoch]:
        """One of the 256 newest epochs; else all zero."""
        return self._query("epoch", Epoch, coordinator, number)

    def session(self, coordinator: Address, client: Address) -> Query[KnownSession]:
        """The session of a client that the chain stores; `post` takes it as `known`."""
        return self._query("session", KnownSession, coordinator, client)

    def claimed(self, coordinator: Address, account: Address) -> Query[Amount]:
        """What an account has claimed so far."""
        return self._query("claimed", Amount, coordinator, account)


def _is_known(session: Session, known: Mapping[Address, KnownSession]) -> bool:
    found = known.get(session.client)
    return found is not None and found.is_of(session)


def _session_words(signed: SignedVoucher) -> tuple[object, ...]:
    session = signed.session.message
    return (
        session.client,
        session.session_key,
        session.up_to,
        session.expires,
        words(signed.session.sig),
    )


def _voucher_words(signed: SignedVoucher) -> tuple[object, ...]:
    voucher = signed.voucher.message
    return _packed(voucher.payer, voucher.cumulative), words(signed.voucher.sig)


def _packed(account: Address, amount: Amount) -> int:
    """account(160) | amount(96)"""
    assert amount < 2**96, "no escrow holds that much"
    return int.from_bytes(account, "big") << 96 | amount


def leaf_words(leaf: Leaf) -> tuple[object, ...]:
    """Returns a leaf as the contracts take it."""
    return leaf.index, leaf.account, leaf.final << 128 | leaf.held, leaf.receipts_root


def sibling_words(node: Node) -> tuple[object, ...]:
    """Returns a node of a proof as the contracts take it."""
    return node.hash, node.final << 128 | node.held
