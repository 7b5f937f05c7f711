"""A scripted market of the coordinator whose providers lease machines by the minute."""

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import AppendSummary
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Summary
from quorate_protocol.units import Amount, ExitStatus, Hash32, JobKind, Milliseconds, VerifyTier
from quorate_protocol.values import replace
from support.markets.scripted_market import Market, Party

PRICE = 3_600_000  # millionths an hour: a thousand a second
AHEAD = 20_400  # 20 s and the fee


class Rentals(Market):
    """A market whose providers accept rentals and meter nothing by themselves."""

    limit = 3_600
    price = PRICE

    def __init__(
        self, parties: int = 3, is_spot: bool = False, spot: int = 0, egress: tuple[str, ...] = ()
    ) -> None:
        super().__init__(*[Party(number) for number in range(parties)])
        for party in self.parties.values():
            offer = self.core.state.providers[party.owner].offer
            assert offer is not None
            prices = {"on_demand": PRICE * (not is_spot), "spot": PRICE if is_spot else spot}
            slots = tuple(replace(slot, **prices) for slot in offer.slots)  # type: ignore[arg-type]
            kinds = (JobKind.TASK, JobKind.SERVICE, JobKind.DEV_ENVIRONMENT)
            offer = replace(offer, seq=2, slots=slots, kinds=kinds, egress=egress)
            self.send_offer(party, offer)
        self.at += 1
        self._send_heartbeats()

    def rent(self, ahead: int = 1_000_000, nonce: int = 1, **changes: object) -> Hash32:
        """Orders a rental with a voucher that goes so far ahead."""
        self._send_heartbeats()
        client = self.client()
        if not client.sessions:
            self.send(ev.SessionReceived(self.submission(0, 99).session))
        if ahead > client.vouched - client.charged:
            self.vouch(0, Amount(client.charged + ahead))
        fields: dict[str, object] = {
            "kind": JobKind.DEV_ENVIRONMENT,
            "max_price_per_hour": PRICE,
            "budget": Amount(10_000_000),
            "max_executions": 1,
            "verify_tier": VerifyTier.NONE,
            "accept_unverified": True,
            "caseable": False,
        }
        return self.order(0, nonce, prepays=False, **{**fields, **changes})

    def deliver(self) -> None:
        while self.pending:
            effect = self.pending.pop(0)
            if isinstance(effect.frame, frames.AssignmentSent):
                party = self.parties[effect.peer]
                self.accept(party, effect.frame.assignment.digest(self.core.rules.domain))

    def meter(self, job_id: Hash32, seconds: float, exit_status: int | None = None) -> object:
        """The provider's next meter; returns the answer."""
        lease = self.lease(job_id)
        status = None if exit_status is None else ExitStatus(exit_status)
        usage = Milliseconds(round(seconds * 1000))
        return self.send(ev.MeterReceived(lease.assignment_hash, usage, status, lease.provider))

    def lease(self, job_id: Hash32) -> leases.Lease:
        return self.core.state.leases[self.job(job_id).leases[-1]]

    def start(self, **changes: object) -> Hash32:
        """A rental whose container has just started."""
        job_id = self.rent(**changes)  # type: ignore[arg-type]
        self.deliver()
        assert self.meter(job_id, 0) is None
        return job_id

    def lines(self) -> list[Summary]:
        return [effect.line.message for effect in self.sent(AppendSummary)]
