"""The tools of the MCP server, and the limits that its user set."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Protocol

from pydantic import Field

from quorate.base.errors import RefusedError, UnavailableError, UsageError
from quorate.job.job import Job
from quorate.sandboxes.machines import Machines, template
from quorate.sandboxes.sandbox import Sandbox, order
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount, Bps, Price, Seconds, usd
from quorate_runtime.files import file_lock

QUOTE_SECONDS = 300.0
QUOTES_MAX = 100
OUTPUT_MAX = 64 << 10
READ_BYTES_MAX = 256 << 10
HOUR = Seconds(3600)

Named = Annotated[str, Field(description="Its id, as create_sandbox returned it.")]
Minutes = Annotated[int, Field(ge=1, le=30 * 24 * 60)]


class Broker(Machines, Protocol):
    """A market as the tools see it."""

    async def offers(self) -> list[dict[str, Any]]: ...

    async def price(self, job: Job) -> tuple[Price, Bps]:
        """Returns the cheapest price an hour that fits, and the fee. Raises RefusedError."""
        ...

    async def costs(self, beginning: str) -> tuple[Amount, Amount]:
        """Of all sandboxes whose names begin so: what ended ones cost, what others may cost."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server may spend and allow. `budget` counts for all that was ever started under
    `name` in this profile, also by earlier runs of the server.
    """

    budget: Amount
    max_price: str
    max_sandboxes: int = 3
    egress: tuple[str, ...] = ()
    name: str = "mcp"

    def check_egress(self, hosts: list[str]) -> None:
        denied = [host for host in hosts if host not in self.egress and "*" not in self.egress]
        if denied:
            allowed = ", ".join(self.egress) or "none"
            raise UsageError(
                f"egress: {denied[0][:80]!r} is not allowed; --allow-egress allows {allowed}. Do "
                "without it, or ask the user to allow it"
            )


@dataclass(frozen=True, slots=True)
class Quote:
    """A price that the user has not been asked to pay yet. `worst`: the most that it can cost."""

    job: Job
    worst: Amount
    expires: float


@dataclass(slots=True)
class Tools:
    """Every method without an underscore is a tool, and its docstring tells the model."""

    _broker: Broker
    _limits: Limits
    _lock: Path  # of all servers of the profile, so that no two spend the same money
    _clock: Callable[[], float] = time.monotonic
    _quotes: dict[str, Quote] = field(default_factory=dict)
    _sandboxes: dict[str, tuple[Sandbox, str]] = field(default_factory=dict)
    _ordering: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def offers(self) -> dict[str, Any]:
        """Lists machines for rent: GPU, memory, cores, disk, region, USD an hour without fee."""
        return {"offers": await self._broker.offers()}

    async def quote(
        self,
        image: Annotated[str, Field(description="Such as python:3.12-slim.")],
        minutes: Minutes = 60,
        gpu: Annotated[str, Field(description='Such as "H100:1" or "24GB..:1".')] = "",
        cores: str = "",
        memory: Annotated[str, Field(description='Such as "8GB".')] = "",
        disk: Annotated[str, Field(description='Such as "20GB".')] = "",
        egress: Annotated[list[str], Field(description="Hosts that it may reach.")] = [],  # noqa: B006
    ) -> dict[str, Any]:
        """Says what a sandbox costs an hour and at most. Costs nothing. create_sandbox needs it."""
        limits = self._limits
        limits.check_egress(egress)
        if image.startswith(("/", ".", "~")) or await asyncio.to_thread(Path(image).exists):
            raise UsageError("image: name one of a registry, such as python:3.12-slim; no path")
        asked = {"gpu": gpu, "cpu": cores, "memory": memory, "disk": disk}
        hosts: dict[str, Any] = {"egress": tuple(egress)} if egress else {}
        made = template(
            image,
            name=limits.name,
            max_price=limits.max_price,
            max_duration=f"{minutes}m",
            resources={name: value for name, value in asked.items() if value},
            **hosts,
        ).job
        try:
            price, fee = await self._broker.price(made)
        except RefusedError as error:
            raise UsageError(
                f"{error}. --max-price {limits.max_price} is the most an hour; ask for a smaller "
                "machine, or the user to raise it"
            ) from error
        worst = rentals.cost_of(Seconds(minutes * 60), price, fee)
        await self._check_budget(worst)
        while len(self._quotes) >= QUOTES_MAX:
            del self._quotes[next(iter(self._quotes))]
        name = f"q-{token_hex(4)}"
        job = replace(made, max_price=usd(price), budget=usd(worst), max_fee_bps=int(fee))
        self._quotes[name] = Quote(job, worst, self._clock() + QUOTE_SECONDS)
        return {
            "quote_id": name,
            "usd_per_hour": usd(rentals.cost_of(HOUR, price, fee)),
            "usd_at_most": usd(worst),
            "minutes": minutes,
            "expires_in_seconds": int(QUOTE_SECONDS),
        }

    async def create_sandbox(self, quote_id: str) -> dict[str, Any]:
        """Rents a new machine at the price of a quote, and waits until it runs (minutes, if its
        image must be fetched). Destroy it when you are done: it is paid by the second.
        """
        busy = UnavailableError("another MCP server of this profile is buying now; try again soon")
        async with self._ordering:
            with file_lock(self._lock, busy):
                quote, sandbox = await self._order(quote_id)
        try:
            await sandbox.prepare({})
        except BaseException:
            self._sandboxes.pop(sandbox.id[:14], None)
            raise
        return {"sandbox": sandbox.id[:14], "usd_at_most": usd(quote.worst)}

    async def exec(
        self,
        sandbox: Named,
        command: Annotated[str, Field(description="A line for /bin/sh; it begins in HOME.")],
        timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60,
        stdin: str = "",
        folder: str = "",
    ) -> dict[str, Any]:
        """Runs a command and returns its status and output, of which the middle may be cut. The
        status is null if it was stopped because it ran too long or wrote too much.
        """
        result = await self._named(sandbox).exec(
            command, stdin=stdin, timeout=timeout_seconds, cwd=folder, output_max=OUTPUT_MAX
        )
        return {
            "status": result.status,
            "stdout": _text(result.stdout),
            "stderr": _text(result.stderr),
            "was_cut": result.was_cut,
        }

    async def write_file(self, sandbox: Named, path: str, text: str) -> dict[str, Any]:
        """Writes a text file; relative paths begin in HOME, and missing folders are made."""
        data = text.encode(errors="replace")
        await self._named(sandbox).upload(data, path)
        return {"bytes": len(data)}

    async def read_file(self, sandbox: Named, path: str) -> dict[str, Any]:
        """Reads a text file of at most 256 KiB. Bytes that are no UTF-8 are replaced."""
        data = await self._named(sandbox).download(path, bytes_max=READ_BYTES_MAX)
        return {"text": _text(data), "bytes": len(data)}

    async def list_files(self, sandbox: Named, path: str = ".") -> dict[str, Any]:
        """Lists a folder."""
        found = await self._named(sandbox).list(path)
        rows = [
            {
                "name": _text(it.name.encode(errors="surrogateescape")),
                "size": it.size,
                "is_folder": it.is_folder,
            }
            for it in found
        ]
        return {"files": rows}

    async def forward_port(self, sandbox: Named, port: int) -> dict[str, Any]:
        """Returns a URL on the user's computer that leads to a port of the sandbox, where a program
        listens on 127.0.0.1.
        """
        return {"url": await self._named(sandbox).port(port)}

    async def destroy(self, sandbox: Named) -> dict[str, Any]:
        """Ends a sandbox with all that is in it, and says what it cost so far."""
        found = self._named(sandbox)
        await found.close()
        del self._sandboxes[sandbox]
        return {"spent_usd": usd(await found.spent())}

    async def list_sandboxes(self) -> dict[str, Any]:
        """Lists the sandboxes that run, and what each has cost."""
        await self._forget_ended()
        rows = [
            {"sandbox": name, "image": image, "spent_usd": usd(await sandbox.spent())}
            for name, (sandbox, image) in list(self._sandboxes.items())
        ]
        return {"sandboxes": rows}

    async def spend(self) -> dict[str, Any]:
        """Says what of the budget is spent, what running sandboxes may still take, and the rest."""
        cost, promised = await self._broker.costs(f"{self._limits.name}-")
        budget = self._limits.budget
        return {
            "budget_usd": usd(budget),
            "spent_usd": usd(cost),
            "running_at_most_usd": usd(promised),
            "left_usd": usd(Amount(max(0, budget - cost - promised))),
        }

    async def _order(self, quote_id: str) -> tuple[Quote, Sandbox]:
        quote = self._quotes.pop(quote_id, None)
        if quote is None:
            raise UsageError(
                f"quote_id: there is no quote {quote_id[:32]!r}; each is good for one sandbox, "
                "so ask `quote` first"
            )
        if self._clock() > quote.expires:
            raise UsageError("quote_id: it has expired; ask `quote` again")
        await self._forget_ended()
        if len(self._sandboxes) >= self._limits.max_sandboxes:
            raise UsageError(
                f"--max-sandboxes {self._limits.max_sandboxes}: so many run; destroy one first"
            )
        await self._check_budget(quote.worst)
        sandbox = await order(self._broker, quote.job)
        self._sandboxes[sandbox.id[:14]] = sandbox, str(quote.job.image)
        return quote, sandbox

    async def _check_budget(self, worst: Amount) -> None:
        cost, promised = await self._broker.costs(f"{self._limits.name}-")
        left = self._limits.budget - cost - promised
        if worst > left:
            raise UsageError(
                f"--budget {usd(self._limits.budget)}: it may cost {usd(worst)} USD, and "
                f"{usd(Amount(max(0, left)))} is left; ask for fewer minutes, destroy a sandbox, "
                "or ask the user to raise it"
            )

    async def _forget_ended(self) -> None:
        for name, (sandbox, _) in list(self._sandboxes.items()):
            if not sandbox.is_connected and await sandbox.why_over():
                await sandbox.close()
                self._sandboxes.pop(name, None)

    def _named(self, name: str) -> Sandbox:
        found = self._sandboxes.get(name)
        if found is None:
            raise UsageError(
                f"sandbox: there is no {name[:32]!r}; see list_sandboxes, or make one by quote and "
                "create_sandbox"
            )
        return found[0]

    async def _destroy_all(self) -> list[BaseException]:
        """Returns what failed."""
        ends = [sandbox.close() for sandbox, _ in self._sandboxes.values()]
        done = await asyncio.gather(*ends, return_exceptions=True)
        return [error for error in done if error is not None]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
