"""Sends the secrets of rentals to their providers, until the rentals run (PROTOCOL 12.35)."""

from quorate.base.errors import QuorateError
from quorate.client.base.session import ClientSession
from quorate.client.provider_offer import offer_of
from quorate.rentals.secrets import OrderSecrets, forget, waiting
from quorate_protocol.messages.views import ExecutionView, RunView
from quorate_protocol.units import Hash32

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 20.0  # its provider may have lost them
_OPEN_PHASES = ("assigned", "accepted")
_OVER = ("ended", "live")  # nothing is to be sent any more


class SecretSender:
    """Sends what waits in the profile, to the provider that each rental has now."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._sent_at: dict[Hash32, float] = {}  # by assignment
        self._told: set[str] = set()

    async def run(self) -> None:
        while True:
            for job_id, secrets in waiting(self._session.profile.home).items():
                try:
                    await self._look(job_id, secrets)
                except QuorateError as error:
                    # Not re-raised: the provider may be away, or another one may come.
                    self._tell(f"secrets of 0x{job_id.hex()[:12]} wait: {error}")
            await self._session.clock.sleep(LOOK_SECONDS)

    async def _look(self, job_id: Hash32, secrets: OrderSecrets) -> None:
        view = await self._session.api.run(job_id)
        if _is_over(view):
            forget(self._session.profile.home, job_id)
            return
        lease = next((it for it in reversed(view.executions) if it.phase in _OPEN_PHASES), None)
        now = self._session.clock.now()
        if lease is not None and now >= self._sent_at.get(lease.assignment_hash, 0) + AGAIN_SECONDS:
            await self._send(job_id, lease, secrets)
            self._sent_at[lease.assignment_hash] = now

    async def _send(self, job_id: Hash32, lease: ExecutionView, secrets: OrderSecrets) -> None:
        offer = await offer_of(self._session, lease.provider)
        await self._session.api.secrets(job_id, secrets.box_for(offer))

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._session.notice(sentence)


def _is_over(view: RunView) -> bool:
    return view.phase in _OVER or any(item.phase in _OVER for item in view.executions)


async def until_delivered(session: ClientSession, job_id: Hash32) -> None:
    """For a command that would end before the rental has its secrets. It returns once the rental
    runs, or is over.
    """
    while job_id in waiting(session.profile.home):
        await session.clock.sleep(LOOK_SECONDS)
