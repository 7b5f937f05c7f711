"""Checks a market after its programs were killed (PROTOCOL §1, I1 to I7).

Each check is repeated until it passes or its time is over.
"""

import asyncio
import io
import time
from collections import Counter
from pathlib import Path

from quorate import Market
from quorate.base.errors import UnavailableError
from quorate_devnet.market.config import ExecutorChoice
from quorate_protocol.codec import canonical
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ExecutionView, ProviderView, RunView
from quorate_protocol.units import Outcome
from quorate_runtime.http.log_download import LogDownload
from support.crash.crash_chain import sums_that_do_not_hold
from support.crash.crash_market import CrashMarket
from support.crash.crash_processes import processes

SETTLED_SECONDS = 40.0
QUORUM = 2
POLL_SECONDS = 0.3
DOCUMENT_BYTES_MAX = 1 << 20


class Checks:
    """Checks one market from outside.

    It keeps the views of all runs, because the coordinator drops old ones.
    """

    def __init__(self, crash: CrashMarket, markets: tuple[Market, ...]) -> None:
        self._crash, self._markets = crash, markets
        self._liars = crash.devnet.providers[: crash.devnet.config.liars]
        self._views: dict[bytes, RunView] = {}
        self.late: set[tuple[bytes, bytes]] = (
            set()
        )  # (job, provider) pairs where the provider came back too late to reveal
        self.unresolved: set[str] = set()  # ids of runs for which too few owners were alive

    async def problems(self) -> list[str]:
        """Returns the problems that remain after some time; an empty list if there are none."""
        limit = time.monotonic() + SETTLED_SECONDS
        while True:
            try:
                found = await self._look()
            except UnavailableError as error:
                found = [f"the coordinator is away: {error}"]
            if not found or time.monotonic() > limit:
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self) -> list[str]:
        problems: list[str] = []
        for market in self._markets:
            views = {bytes(view.job_id): view for view in await market.runs()}
            self._views.update(views)
            problems += self._lost(market, set(views))
            problems += await self._charges(market, views)
        for view in self._views.values():
            problems += self._ends(view)
        problems += self._shared_slots() + await self._pay() + await asyncio.to_thread(self._left)
        return problems or await sums_that_do_not_hold(self._crash)

    def _lost(self, market: Market, known: set[bytes]) -> list[str]:
        """I6: every acknowledged order exists."""
        acknowledged = [entry for entry in market.entries() if entry.ack is not None]
        return [
            f"{entry.name}: acknowledged and lost"
            for entry in acknowledged
            if bytes(entry.job_id) not in {*known, *self._views}
        ]

    async def _charges(self, market: Market, views: dict[bytes, RunView]) -> list[str]:
        """I4: each order is charged once and within its budget.

        The client's own ledger agrees, and its voucher covers all of it.
        """
        account = await market.account()
        charged = sum(
            view.charged for view in self._views.values() if view.client == account.client
        )
        problems = [
            f"{view.name}: charged {view.charged} of {view.budget}"
            for view in views.values()
            if view.charged > view.budget
        ]
        if account.charged != charged:
            problems.append(f"the account is charged {account.charged}, its runs {charged}")
        booked = sum(entry.charged or 0 for entry in market.entries())
        if not booked == account.charged <= account.vouched:
            problems.append(
                f"charged {account.charged}, booked {booked}, vouched {account.vouched}"
            )
        return problems

    def _ends(self, view: RunView) -> list[str]:
        """I7, I3, I5, I2: each run has an allowed end.

        No honest provider was outvoted or paid twice, and there was at most one primary at a time.
        """
        run = "0x" + view.job_id.hex()
        if view.verdict is None and view.phase.lower() != "ended":
            return [f"{view.name} has not ended: {view.phase}"]
        outcome = view.verdict.message.outcome if view.verdict else None
        revealed = [
            item
            for item in view.executions
            if item.output_digest is not None and item.provider not in self._liars
        ]
        problems = []
        if outcome in {Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY} and len(revealed) < QUORUM:
            # PROTOCOL §5: every other owner failed twice, because it was dead. The fund pays
            # honest work as far as it can (a young market has no fund). The client pays nothing
            # but executions whose log lines it read (4.56).
            self.unresolved.add(run)
            if view.charged and not _has_read(view):
                problems.append(f"{view.name}: {outcome!r}, and charged {view.charged}")
        elif outcome is not Outcome.ACCEPTED and run not in self._crash.may_lapse:
            problems.append(
                f"{view.name}: {outcome}, "
                f"{[(item.role, item.phase, item.agreed) for item in view.executions]}"
            )
        problems += [
            f"{view.name}: an honest execution was outvoted, or did not reveal"
            for item in view.executions
            if outcome is Outcome.ACCEPTED
            and item.agreed is False
            and item.provider not in self._liars
            and not self._is_late(view, item)
        ]
        paid = Counter(bytes(item.provider) for item in view.executions if item.pay)
        if paid and max(paid.values()) > 1:
            problems.append(f"{view.name}: a provider is paid twice")
        primaries = [item for item in view.executions if item.pay and item.role == "primary"]
        if len(primaries) > 1:
            problems.append(f"{view.name}: {len(primaries)} primaries are paid")
        return problems

    def _is_late(self, view: RunView, item: ExecutionView) -> bool:
        """PROTOCOL §5: a provider that does not reveal in time is faulted.

        On a busy machine a daemon may need longer than a devnet's six seconds to come back. A
        provider that ran all the time has no such excuse.
        """
        devnet = self._crash.devnet
        name = f"provider-{devnet.providers.index(item.provider)}"
        if (
            item.output_digest is not None
            or self._crash.away.get(name, 0.0) < devnet.deployment.constants().reveal_within
        ):
            return False
        self.late.add((bytes(view.job_id), bytes(item.provider)))
        return True

    def _shared_slots(self) -> list[str]:
        """I2: if one run slot ran two leases at one time, at most one is paid.

        The other had lapsed or was stopped.
        """
        paid = {
            item.assignment_hash.hex()
            for view in self._views.values()
            for item in view.executions
            if item.pay
        }
        return [
            f"leases {first} and {second} ran in one slot and both are paid"
            for first, second in self._crash.slots.pairs
            if {first, second} <= paid
        ]

    async def _pay(self) -> list[str]:
        """I1, I3: honest providers are owed exactly what the public log says, at least what the
        runs charge, and have no strikes. The audit fund pays some executions that no run charges.
        """
        credited = await self._credited()
        owed: Counter[bytes] = Counter()
        for view in self._views.values():
            for item in view.executions:
                owed[bytes(item.provider)] += item.pay or 0
        problems, devnet = [], self._crash.devnet
        for index, account in enumerate(
            devnet.providers[devnet.config.liars :], devnet.config.liars
        ):
            async with self._crash.session.get(
                f"{devnet.coordinator_url}/v1/providers/0x{account.hex()}"
            ) as response:
                found = canonical.from_json(
                    ProviderView, canonical.parse(await response.read(), DOCUMENT_BYTES_MAX)
                )
            total, charged = found.final + found.held, owed[bytes(account)]
            if total != credited[bytes(account)] or total < charged:
                problems.append(
                    f"provider-{index} is owed {total}, the public log says "
                    f"{credited[bytes(account)]}, its executions say {charged}"
                )
            if found.strikes > sum(provider == account for _, provider in self.late):
                problems.append(f"provider-{index} has {found.strikes} strikes")
        return problems

    async def _credited(self) -> Counter[bytes]:
        """Returns what the coordinator's public log credits to each provider."""
        body, found = io.BytesIO(), Counter[bytes]()
        log = LogDownload(self._crash.devnet.coordinator_url, self._crash.session, body)
        await log.fetch(await log.head())
        for line in body.getvalue().splitlines():
            for item in envelope.decode(line, Summary).message.executions:
                found[bytes(item.provider)] += item.pay
        return found

    def _left(self) -> list[str]:
        """Containers, mounts, processes and folders of leases that are left; there must be none."""
        config, executor = self._crash.devnet.config, self._crash.devnet.executor
        mounts = [
            line.split(" ")[4]
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(config.folder) in line
        ]
        problems = [f"still mounted: {path}" for path in mounts]
        children = {child.process.pid for child in self._crash.devnet.processes.children.values()}
        problems += [f"process left: {words}" for words in processes(config.folder, children)]
        for index in range(config.providers):
            home = config.provider_home(index)
            leases = home / executor.value
            problems += [
                f"lease left: {path}" for path in (leases.iterdir() if leases.is_dir() else ())
            ]
            problems += [f"plain output left: {path}" for path in (home / "outputs").glob("*")]
        return problems + (self._containers() if executor is ExecutorChoice.DOCKER else [])

    def _containers(self) -> list[str]:
        import docker

        client = docker.from_env()
        try:
            labels = [
                f"quorate.owner={self._crash.devnet.config.owner(index)}"
                for index in range(self._crash.devnet.config.providers)
            ]
            found = [
                item.name
                for label in labels
                for item in client.containers.list(
                    all=True, filters={"label": label}, ignore_removed=True
                )
            ]
            found += [
                item.name
                for label in labels
                for item in client.volumes.list(filters={"label": label})
            ]
        finally:
            client.close()
        return [f"container or volume left: {name}" for name in found]


def _has_read(view: RunView) -> bool:
    """Tells if the Verdict names a revealed execution whose log lines the client read."""
    read = view.verdict.message.read if view.verdict else ()
    return any(
        item.assignment_hash in read and item.output_digest is not None for item in view.executions
    )
