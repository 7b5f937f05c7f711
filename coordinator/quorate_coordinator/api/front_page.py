"""The page at `/`: what is on offer, and which contracts hold the money. For people as HTML, for
programs as JSON, by their Accept header.
"""

from html import escape

from aiohttp import web

from quorate_coordinator.core.model.state import State
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import InfoView
from quorate_protocol.units import Address, UnixSeconds, usd
from quorate_runtime.http.coordinator_routes import FrontPage, PoolOnOffer

SECONDS_KEPT = 10  # a page is made once in this time, however many ask
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .75rem .25rem 0"
    "}"
    "td.n,th.n{text-align:right}code{overflow-wrap:anywhere}"
)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Vary": "Accept",
}


def front_page(state: State, now: UnixSeconds, info: InfoView, deployment_hash: str) -> FrontPage:
    """`deployment_hash` is the one by which people compare deployments."""
    owners: dict[str, set[Address]] = {}
    slots: dict[str, int] = {}
    prices: dict[str, list[int]] = {}
    for provider in state.providers.values():
        if provider.offer is None or not provider.is_alive(now):
            continue
        for slot in provider.offer.slots:
            name = str(slot.pool)
            owners.setdefault(name, set()).add(provider.owner)
            slots[name] = slots.get(name, 0) + slot.count
            prices.setdefault(name, []).append(slot.price)
    pools = tuple(
        PoolOnOffer(name, len(owners[name]), slots[name], usd(min(asked)), usd(_median(asked)))
        for name, asked in sorted(prices.items())
    )
    return FrontPage(pools=pools, info=info, deployment_hash=deployment_hash, at=now)


def response(page: FrontPage, accept: str) -> web.Response:
    if "text/html" in accept:
        return web.Response(text=_html(page), content_type="text/html", headers=HEADERS)
    return web.Response(
        body=canonical.encode(page), content_type="application/json", headers=HEADERS
    )


def _median(prices: list[int]) -> int:
    return sorted(prices)[len(prices) // 2]


def _html(page: FrontPage) -> str:
    info = page.info
    rows = "".join(
        f"<tr><td>{escape(item.name)}<td class=n>{item.owners}<td class=n>{item.slots}"
        f"<td class=n>{item.cheapest_usd}<td class=n>{item.median_usd}"
        for item in page.pools
    )
    contracts = "".join(
        f"<tr><td>{escape(name)}<td><code>0x{address.hex()}</code>"
        for name, address in sorted(info.contracts.items())
    )
    lines = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Quorate coordinator</title>",
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>",
        "<h1>Quorate coordinator</h1>",
        f"<p>Account <code>0x{info.coordinator.hex()}</code>, chain {info.chain_id},",
        f"{escape(info.limits)} limits, version {escape(info.version)}.",
        "<h2>On offer</h2><table><tr><th>pool<th class=n>owners<th class=n>run slots",
        f"<th class=n>cheapest USD/h<th class=n>median USD/h{rows}</table>",
        f"<h2>Contracts</h2><table>{contracts}</table>",
        f"<p>Hash of the deployment: <code>{page.deployment_hash}</code>.",
        "Compare it with a source that you trust.",
        "<h2>Begin</h2><pre>pip install .  # in a clone of Quorate\nquorate init --coordinator URL",
        "quorate pools</pre>",
        "<p>Programs get the same as JSON, and <a href=/v1/openapi.json>the API</a>.</html>",
    ]
    return "\n".join(lines) + "\n"
