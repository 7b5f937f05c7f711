"""Authenticates requests by bearer tokens: their keys must be allowed to act for the account
now.
"""

from dataclasses import dataclass

from aiohttp import web

from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules
from quorate_protocol.messages.bearer import read_token
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.keys.crypto import recover_again

CHARGED = web.RequestKey("charged", bool)


@dataclass(slots=True)
class Auth:
    """Checks tokens against one coordinator's state."""

    rules: Rules
    state: State
    clock: Clock
    rates: RequestRates

    def account(self, request: web.Request) -> Address | None:
        """None without a token. Raises Refused for a bad one, `Busy` if it asks too often."""
        header = request.headers.get("Authorization")
        if not header:
            return None
        now = UnixSeconds(int(self.clock.now()))
        bearer = read_token(
            header, self.rules.domain.chain_id, self.rules.coordinator, recover_again, now
        )
        if bearer.key != bearer.account and not self._speaks_for(bearer.account, bearer.key, now):
            raise Refused(
                Code.WRONG_SIGNER, "authorization: this key may not act for this account here"
            )
        if not request.get(CHARGED):
            self.rates.count_account(bearer.account)
            request[CHARGED] = True
        return bearer.account

    def _speaks_for(self, account: Address, key: Address, now: UnixSeconds) -> bool:
        provider = self.state.providers.get(account)
        if provider is not None and provider.operator_key == key:
            return True
        client = self.state.clients.get(account)
        sessions = client.sessions if client else ()
        return any(
            item.message.session_key == key and now < item.message.expires for item in sessions
        )

    def required(self, request: web.Request) -> Address:
        account = self.account(request)
        if account is None:
            raise Refused(Code.BAD_SIGNATURE, "authorization: send a Quorate token")
        return account
