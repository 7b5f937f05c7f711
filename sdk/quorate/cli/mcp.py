"""`quorate mcp`: lets an agent rent sandboxes, within limits."""

from typing import Annotated

import typer

from quorate.cli.context import context_of, note, run_async
from quorate.job.quantities import format_amount, parse_amount, parse_price

LOCK = "mcp.lock"


def mcp(
    ctx: typer.Context,
    budget: Annotated[str, typer.Option(help="The most USD that all its sandboxes ever cost.")],
    max_price: Annotated[str, typer.Option(help="Highest price in USD per hour of each.")],
    max_sandboxes: Annotated[int, typer.Option(help="How many run at once.", min=1, max=100)] = 3,
    allow_egress: Annotated[
        list[str] | None,
        typer.Option(help="Host that sandboxes may reach, or * for all. Repeatable."),
    ] = None,
    name: Annotated[str, typer.Option(help="Whose budget it is; sandboxes are called so.")] = "mcp",
) -> None:
    """Serves sandboxes to an agent by MCP, on standard input and output.

    The budget counts what was spent under its name before, too. All sandboxes end with it.
    """
    from quorate.client.sandbox_machines import RentedMachines
    from quorate.sandboxes.mcp_server import serve
    from quorate.sandboxes.tools import Limits, Tools

    most = parse_amount(budget, "--budget")
    parse_price(max_price, "--max-price")
    limits = Limits(most, max_price, max_sandboxes, tuple(allow_egress or ()), name)

    context = context_of(ctx)

    async def work() -> None:
        async with context.market() as market:
            await market.attach()
            note(f"MCP server {name}: at most {format_amount(most)} in all")
            for problem in await serve(
                Tools(RentedMachines(market), limits, context.home_in_use() / LOCK)
            ):
                note(f"quorate: {problem}")

    run_async(work())
