"""One client at one coordinator: its API, profile, pinned identity and books. What `Market`,
`Run` and the attendance share.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from quorate.client import signed_requests
from quorate.client.client_ledger import Entry, Ledger
from quorate.client.coordinator_api import Api
from quorate.client.profile import Profile
from quorate.errors import EvidenceError, RefusedError, translated
from quorate.trust.charge_verification import Agreement, Known, check_ordered, judge
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate.trust.receipt_verification import check_round
from quorate_protocol.crypto.bearer import Bearer, make_token
from quorate_protocol.messages import envelope, job_spec
from quorate_protocol.messages.envelope import Envelope, seal, signer
from quorate_protocol.messages.signed import Ack, Order, Session
from quorate_protocol.messages.views import AckView, RunView
from quorate_protocol.ports import Clock
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds
from quorate_runtime.keys.crypto import recover

TOKEN_SECONDS = 3600
Notice = Callable[[str], None]
"""Told sentences that a person should see (a commit that was not witnessed, a charge that does not verify)."""


def ignore_notice(_sentence: str) -> None:
    """For callers that do not look."""


@dataclass(slots=True)
class ClientSession:
    """Shared by everything of one Market; `pins` stands after the first contact."""

    api: Api
    profile: Profile
    ledger: Ledger
    clock: Clock
    notice: Notice = ignore_notice
    _identity: CoordinatorIdentity | None = None
    _token: tuple[str, float] = field(default=("", 0.0))

    @property
    def pins(self) -> CoordinatorIdentity:
        """The coordinator's identity as pinned."""
        assert self._identity is not None, "the market was entered"
        return self._identity

    @pins.setter
    def pins(self, pins: CoordinatorIdentity) -> None:
        self._identity = pins

    @property
    def client(self) -> Address:
        """The client's account."""
        return self.profile.account.address

    def token(self) -> str:
        """Authorization header value, renewed before it expires; "" before first contact. Signed
        by the account itself.
        """
        now = self.clock.now()
        if self._identity is None:
            return ""
        if now > self._token[1] - 60:
            expires = UnixSeconds(int(now) + TOKEN_SECONDS)
            bearer = Bearer(self.client, self.client, expires)
            text = make_token(
                bearer, self.pins.chain_id, self.pins.coordinator, self.profile.account.sign
            )
            self._token = (text, float(expires))
        return self._token[0]

    def next_nonce(self, known_max: int) -> int:
        """A nonce above everything known."""
        debt = self.ledger.debt(self.pins.coordinator)
        return signed_requests.next_nonce(
            max(known_max, debt.nonce_max), self.clock.now(), secrets.randbits(64)
        )

    def session_for(self, budget: Amount) -> Envelope[Session]:
        """The newest session if it reaches far enough, else a new one."""
        coordinator, now, limits = self.pins.coordinator, self.clock.now(), self.pins.constants
        debt, key = self.ledger.debt(coordinator), self.profile.session.address
        known = self.newest_session()
        if known is not None and signed_requests.covers(
            known, key, coordinator, debt, budget, now, limits
        ):
            return known
        account = self.profile.account
        return signed_requests.make_session(
            self.pins.domain,
            account.address,
            key,
            coordinator,
            debt,
            budget,
            now,
            limits,
            account.sign,
        )

    def newest_session(self) -> Envelope[Session] | None:
        """The session of the newest order."""
        stored = self.ledger.newest_session(self.pins.coordinator)
        return None if stored is None else envelope.decode(stored, Session)

    def seal_order(self, order: Order) -> Envelope[Order]:
        """Signed by the session key."""
        return seal(self.pins.domain, order, self.profile.session.sign)

    def check_ack(self, job_id: Hash32, order: Order, answer: AckView) -> None:
        """The coordinator must have promised this very job under its statement key.
        EvidenceError otherwise.
        """
        ack = answer.ack.message
        self.check_signed_ack(answer.ack)
        good = answer.job_id == ack.job_id == job_id and ack.fee_bps <= order.max_fee_bps
        if not good:
            raise EvidenceError("ack: it is for another job, or its fee is above the order's")
        check_ordered(ack, order)

    def check_signed_ack(self, ack: Envelope[Ack]) -> None:
        """EvidenceError unless the pinned statement key signed."""
        with translated():
            by = signer(self.pins.domain, ack, recover)
        if by != self.pins.statement_key:
            raise EvidenceError("ack: not signed by the coordinator's statement key")

    def known(self, entry: Entry) -> Known:
        """What the evidence of a job is held against."""
        pins = self.pins
        return Known(
            order=entry.order,
            ack=None if entry.ack is None else envelope.decode(entry.ack, Ack).message,
            spec=job_spec.decode(entry.spec),
            domain=pins.domain,
            statement_key=pins.statement_key,
            beacon_key=pins.beacon_key,
            timing=pins.timing,
            recover=recover,
            verify_round=check_round,
            has_witnessed=self.ledger.has_witnessed,
        )

    def entry(self, job_id: Hash32) -> Entry:
        """Our own record of a job. RefusedError when this profile never ordered it."""
        entry = self.ledger.entry(job_id)
        if entry is None:
            raise RefusedError(
                "not-yours",
                "It belongs to somebody else.",
                "this profile never signed that order, so it cannot check it",
            )
        return entry

    async def agreement(self, view: RunView) -> Agreement:
        """The checked evidence of a run with a verdict."""
        assert view.verdict is not None, "only a decided run has evidence"
        data = await self.api.receipt(view.job_id)
        return judge(self.known(self.entry(view.job_id)), data, view.verdict)
