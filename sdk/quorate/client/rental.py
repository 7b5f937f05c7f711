"""`Rental`: a machine that this client pays by the minute, and the ways into it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.base.errors import RefusedError, UsageError
from quorate.client.background_settlement import BackgroundSettlement, is_over
from quorate.client.base.session import ClientSession
from quorate.client.money import rental_charges
from quorate.client.provider_offer import offer_of
from quorate.client.run import Run
from quorate.job.quantities import format_duration, parse_duration
from quorate.rentals.secrets import waiting
from quorate.rentals.ssh_files import KEY_TYPE, USER, Host, SshFiles
from quorate_protocol.messages.views import RentalView, RunView
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Amount, UnixSeconds

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Rental:
    """One rental of this client. `Market.rental` makes it."""

    run: Run
    session: ClientSession
    settlement: BackgroundSettlement

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def host(self) -> Host:
        return Host(self.run.name, self.run.job_id)

    @property
    def files(self) -> SshFiles:
        return SshFiles(self.session.profile.home)

    async def started(self) -> RunView:
        """Lets it go on, and waits until the machine runs. Raises RefusedError if it ended
        before.
        """
        await self.keep()
        while True:
            view = await self.run.status()
            if view.rental is not None and view.rental.started_at:
                await self.settlement.keeper.allow(view)
                return view
            if is_over(view):
                raise await self._over()
            await self.session.clock.sleep(POLL_SECONDS)

    async def running(self) -> tuple[RunView, RentalView]:
        """Raises RefusedError unless it runs now."""
        view = await self.run.status()
        if is_over(view):
            raise await self._over()
        if view.rental is None or not view.rental.started_at:
            why = "its provider fetches the image, or none was found"
            if self.lacks_secrets():
                why = f"it waits for its secrets, and `quorate shell {self.run.called}` sends them"
            raise _refused(
                Code.TOO_EARLY,
                f"rental {self.run.called} does not run yet: {why}; see "
                f"`quorate events {self.run.called}`",
            )
        return view, view.rental

    def lacks_secrets(self) -> bool:
        """Whether its secrets are here, and no program has sent them until it ran."""
        return self.run.job_id in waiting(self.session.profile.home)

    async def why_over(self) -> str:
        """Returns "" while it goes on."""
        if not is_over(await self.run.status()):
            return ""
        return await self.run.why_ended() or "see its events"

    async def _over(self) -> RefusedError:
        why = await self.why_over()
        return _refused(
            Code.TOO_LATE, f"rental {self.run.called} is over: {why}; rent another: `quorate rent`"
        )

    async def pin(self) -> None:
        """Pins the host key, once: it is in the offer that the provider signed. The chain says
        whose key signed. Raises EvidenceError if the offer does not hold.
        """
        if self.files.is_pinned(self.run.job_id):
            return
        _, rental = await self.running()
        offer = await offer_of(self.session, rental.provider)
        self.files.pin(self.host, bytes(offer.peer_key))

    async def keep(self) -> None:
        """From now on this program lets the rental go on, until it ends."""
        self.settlement.keeper.keep(self.run.job_id)

    async def stop(self) -> None:
        """Ends it. If that fails it ends within two minutes: this program pays nothing more."""
        self.settlement.keeper.release(self.run.job_id)
        if not is_over(await self.run.status()):
            await self.run.stop()

    async def spent(self) -> Amount:
        return (await self.run.status()).charged

    async def extend(self, duration: str | int) -> UnixSeconds:
        """Signs so much time more, from now on. Returns when that is used up.

        Raises UsageError if the lead is too small or the order ends before, RefusedError if the tab
        is too small or it does not run.
        """
        seconds = parse_duration(duration, "time")
        view, rental = await self.running()
        self._check_time(rental, seconds)
        await self.settlement.keeper.reserve(view, rental, seconds)
        return self.paid_until(rental)

    async def extension(self, duration: str | int) -> Amount:
        """Returns what `extend` would sign more, which is 0 if it is paid for longer already."""
        seconds = parse_duration(duration, "time")
        view, rental = await self.running()
        self._check_time(rental, seconds)
        most = self.settlement.keeper.most(view, rental, seconds)
        return Amount(max(0, most - self.reserved()))

    def _check_time(self, rental: RentalView, seconds: int) -> None:
        now, entry = self.session.clock.now(), self.session.entry(self.run.job_id)
        left = rental_charges.time_left(entry, rental, now)
        if seconds > left:
            raise UsageError(
                f"time: the order of {self.run.called} (max_duration, budget) leaves "
                f"{format_duration(left)} at most; name a shorter time"
            )

    def paid_until(self, rental: RentalView) -> UnixSeconds:
        return rental_charges.paid_until(self.session.entry(self.run.job_id), rental)

    def reserved(self) -> Amount:
        """All that it may cost now, by what this client signed."""
        return self.session.entry(self.run.job_id).reserved

    @asynccontextmanager
    async def connect(self) -> "AsyncIterator[SSHClientConnection]":
        """Yields an SSH connection, and lets the rental go on meanwhile. Needs `quorate[rent]`."""
        try:
            import asyncssh
        except ImportError as error:
            raise UsageError(
                "connect() needs asyncssh: pip install 'quorate[rent]'; or use `quorate shell`"
            ) from error
        from quorate_runtime.http import byte_streams

        await self.pin()
        await self.keep()
        key = self.files.known_hosts(self.run.job_id).read_text().split()[2]
        pinned = asyncssh.import_public_key(f"{KEY_TYPE} {key}")
        ws = await self.session.api.stream(self.run.job_id)
        ours, theirs = socket.socketpair()
        bridged = asyncio.create_task(byte_streams.bridge(ws, theirs))
        try:
            async with asyncssh.connect(
                self.host.alias,
                sock=ours,
                username=USER,
                client_keys=[str(self.files.key)],
                known_hosts=([pinned], [], []),
                agent_path=None,
                config=None,
            ) as connection:
                yield connection
        finally:
            bridged.cancel()
            await asyncio.gather(bridged, return_exceptions=True)


def _refused(code: Code, detail: str) -> RefusedError:
    return RefusedError(code.value, MEANINGS[code].sentence, detail)
