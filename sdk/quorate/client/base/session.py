"""What `Market`, `Run` and the background settlement share: API, profile, pinned identity and
ledger.
"""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.base.errors import EvidenceError, ProfileError, RefusedError, translated
from quorate.client.base import signed_requests
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.locked_profile import is_open
from quorate.client.base.profile import Profile
from quorate.trust.charge_verification import (
    CheckedVerdict,
    OwnRecord,
    check_escrowed,
    check_ordered,
    check_receipt,
    check_rented,
)
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate.trust.receipt_verification import check_round
from quorate_protocol.messages import envelope, job_spec
from quorate_protocol.messages.bearer import Bearer, make_token
from quorate_protocol.messages.envelope import Envelope, seal, signer
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Ack, Order, Session
from quorate_protocol.messages.views import AckView, RunView
from quorate_protocol.rules import settlement
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds
from quorate_runtime.files import write_atomic
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.crash_points import crash_point

if TYPE_CHECKING:
    from quorate.client.base.coordinator_api import Api


# Keeps the newest bearer token in the profile, so that reading needs no key for a day.
#
# A token lets its holder read this account's runs, logs and outputs for 23 hours. It cannot
# order, pay or sign. The file has mode 0600.

FILE = "token.json"
FILE_BYTES_MAX = 4096
NONE = ("", 0.0)


def kept_token(home: Path, client: Address, identity: CoordinatorIdentity) -> tuple[str, float]:
    """Returns the kept token of an account at a coordinator, and when it expires (Unix seconds)."""
    try:
        with (home / FILE).open("rb") as file:
            tree = json.loads(file.read(FILE_BYTES_MAX))
        if tree["for"] != _whose(client, identity):
            return NONE
        return str(tree["token"]), float(tree["expires"])
    except (OSError, ValueError, KeyError, TypeError):
        return NONE  # not re-raised: without a token one is signed


def keep_token(
    home: Path, client: Address, identity: CoordinatorIdentity, token: tuple[str, float]
) -> None:
    """Writes the token for later commands. A folder that cannot be written keeps none."""
    tree = {"for": _whose(client, identity), "token": token[0], "expires": token[1]}
    try:
        write_atomic(home / FILE, json.dumps(tree).encode(), 0o600)
    except OSError:
        return  # not re-raised: the next command signs a token of its own


def _whose(client: Address, identity: CoordinatorIdentity) -> str:
    return f"{identity.chain_id}.{identity.coordinator.hex()}.{client.hex()}"


TOKEN_SECONDS = 23 * 3600
NO_TOKEN = (
    "the coordinator shows runs to their owner, who signs for that once a day: quorate unlock"
)
Notice = Callable[[str], None]
"""Called with sentences for the user, such as a commit that was not witnessed or a charge that does
not verify.
"""


def ignore_notice(_sentence: str) -> None: ...


@dataclass(slots=True)
class ClientSession:
    """The shared state of one Market. `identity` is set after the first contact."""

    api: "Api"
    profile: Profile
    ledger: Ledger
    clock: Clock
    notice: Notice = ignore_notice
    may_ask: bool = True  # False: a read, which never asks for the passphrase
    # One order is funded on chain at a time.
    funding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _identity: CoordinatorIdentity | None = None
    _token: tuple[str, float] = field(default=("", 0.0))

    @property
    def identity(self) -> CoordinatorIdentity:
        assert self._identity is not None, "the market is entered"
        return self._identity

    @identity.setter
    def identity(self, identity: CoordinatorIdentity) -> None:
        self._identity = identity

    @property
    def client(self) -> Address:
        return self.profile.account.address

    @property
    def can_sign(self) -> bool:
        """Whether this program signs without asking for a passphrase, or may ask."""
        return self.may_ask or is_open(self.profile.account)

    def sign_in(self) -> None:
        """Says, to a read that needs a token, how to sign one. No read asks for the passphrase."""
        if not self.can_sign:
            raise ProfileError(NO_TOKEN)

    def token(self) -> str:
        """Returns the Authorization header, signed by the account, and renews it before it expires.

        It is kept in the profile, so that reading asks for no passphrase for a day. "" before first
        contact, and for a read without a kept token while the keys are closed.
        """
        now = self.clock.now()
        if self._identity is None:
            return ""
        if now > self._token[1] - 60:
            kept = kept_token(self.profile.home, self.client, self.identity)
            # After the clock was set back, the coordinator would refuse a token of the future.
            self._token = kept if kept[1] <= now + TOKEN_SECONDS else self._token
        if now > self._token[1] - 60:
            if not self.can_sign:
                return ""
            expires = UnixSeconds(int(now) + TOKEN_SECONDS)
            bearer = Bearer(self.client, self.client, expires)
            text = make_token(
                bearer, self.identity.chain_id, self.identity.coordinator, self.profile.account.sign
            )
            self._token = (text, float(expires))
            keep_token(self.profile.home, self.client, self.identity, self._token)
        return self._token[0]

    def next_nonce(self, known_max: int) -> int:
        """Returns a nonce above every known one."""
        debt = self.ledger.debt(self.identity.coordinator)
        return signed_requests.next_nonce(
            max(known_max, debt.nonce_max), self.clock.now(), secrets.randbits(64)
        )

    def session_for(self, reserved: Amount) -> Envelope[Session]:
        """Returns the newest session if it covers what an order reserves, else signs a new one."""
        coordinator = self.identity.coordinator
        now = self.clock.now()
        limits = self.identity.constants
        debt, key = self.ledger.debt(coordinator), self.profile.session.address
        own_record = self.newest_session()
        if own_record is not None and signed_requests.covers(
            own_record, key, coordinator, debt, reserved, now, limits
        ):
            return own_record
        account = self.profile.account
        return signed_requests.make_session(
            self.identity.domain,
            account.address,
            key,
            coordinator,
            debt,
            reserved,
            now,
            limits,
            account.sign,
        )

    def newest_session(self) -> Envelope[Session] | None:
        """Returns the session of the newest order, or None."""
        stored = self.ledger.newest_session(self.identity.coordinator)
        return None if stored is None else envelope.decode(stored, Session)

    def seal_order(self, order: Order) -> Envelope[Order]:
        """Signs an order with the session key."""
        return seal(self.identity.domain, order, self.profile.session.sign)

    def keep_ack(self, job_id: Hash32, submission: Submission, answer: AckView) -> None:
        """Checks that the coordinator promised exactly this job under its statement key, and
        records it. Raises EvidenceError if not.
        """
        order, ack = submission.order.message, answer.ack.message
        self.check_signed_ack(answer.ack)
        good = answer.job_id == ack.job_id == job_id and ack.fee_bps <= order.max_fee_bps
        if not good:
            raise EvidenceError("ack: it is for another job, or its fee is above the order's limit")
        is_rental = submission.spec.kind.is_rental
        (check_rented if is_rental else check_ordered)(ack, order)
        check_escrowed(ack, submission.escrowed)
        most = settlement.charge_limit(order, ack.rule, ack.fee_bps)
        if is_rental:
            most = self.entry(job_id).reserved  # its vouchers say how far it may go
        crash_point("client.before-ack")
        self.ledger.acknowledge(job_id, envelope.encode(answer.ack), most)
        crash_point("client.after-ack")

    def check_signed_ack(self, ack: Envelope[Ack]) -> None:
        """Raises EvidenceError unless the pinned statement key signed."""
        with translated():
            by = signer(self.identity.domain, ack, recover)
        if by != self.identity.statement_key:
            raise EvidenceError("ack: the coordinator's statement key did not sign it")

    def own_record(self, entry: OrderRecord) -> OwnRecord:
        """Returns what this client knows by itself about a job. Evidence is checked against it."""
        identity = self.identity
        return OwnRecord(
            order=entry.order,
            ack=None if entry.ack is None else envelope.decode(entry.ack, Ack).message,
            spec=job_spec.decode(entry.spec),
            domain=identity.domain,
            statement_key=identity.statement_key,
            beacon_key=identity.beacon_key,
            timing=identity.timing,
            recover=recover,
            verify_round=check_round,
            has_witnessed=self.ledger.has_witnessed,
        )

    def entry(self, job_id: Hash32) -> OrderRecord:
        """Returns our own record of a job. RefusedError if this profile never ordered it."""
        entry = self.ledger.entry(job_id)
        if entry is None:
            raise RefusedError(
                "not-yours",
                "It belongs to another account.",
                "this profile never signed that order, so it cannot check it",
            )
        return entry

    async def checked_verdict(self, view: RunView) -> CheckedVerdict:
        assert view.verdict is not None, "only a decided run has evidence"
        data = await self.api.receipt(view.job_id)
        return check_receipt(self.own_record(self.entry(view.job_id)), data, view.verdict)
