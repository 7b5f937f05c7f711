"""The few RPC commands of a Kubo daemon that Quorate uses: see docs/decisions/0001.

Nothing that it returns is trusted: content is read through its gateway and verified. Our CAR goes
in by `dag/import`, so a CID never depends on the daemon's configuration. Source:
https://docs.ipfs.tech/reference/kubo/rpc/.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import cast
from urllib.parse import urlsplit

import aiohttp

from quorate_content.dag.cid import Cid
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.client_sessions import read_bounded

ANSWER_BYTES_MAX = 1 << 20
SHORT = aiohttp.ClientTimeout(total=30.0)
PIN_NAME_BYTES_MAX = 255

Json = Mapping[str, object]


class Kubo:
    """One daemon at its RPC URL, for example http://127.0.0.1:5001."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url.rstrip("/")

    async def version(self) -> str:
        return str((await self._one("version")).get("Version", ""))

    async def gateway_url(self) -> str:
        """Returns the base URL of the daemon's gateway, or "" if it serves none."""
        value = (await self._one("config", arg="Addresses.Gateway")).get("Value")
        first = value[0] if isinstance(value, list) and value else value
        return gateway_of(str(first or ""), self._url)

    async def pin_name(self, cid: Cid) -> str | None:
        """Returns the name of a recursive pin ("" without a name), or None if it is not pinned."""
        try:
            answer = await self._one("pin/ls", arg=str(cid), type="recursive", names="true")
        except Refused:
            return None  # the daemon answers so for content that is not pinned
        keys = answer.get("Keys")
        found = keys.get(str(cid)) if isinstance(keys, dict) else None
        return str(found.get("Name", "")) if isinstance(found, dict) else None

    async def import_car(
        self, cid: Cid, car: AsyncIterator[bytes], name: str, wait_seconds: int
    ) -> None:
        """Imports and pins the CAR of `cid`, and keeps the name of a pin that was there.

        `name` is for a new pin. Raises `Refused(MALFORMED)` with what the daemon said, unless it
        answers 200, names exactly our root and reports no error of the pin. Without `wait_seconds`
        an incomplete DAG would make the daemon wait for the network.
        """
        earlier = await self.pin_name(cid)
        form = aiohttp.FormData()
        form.add_field("file", car, filename=f"{cid}.car", content_type="application/vnd.ipld.car")
        parameters = {"pin-roots": "true", "timeout": f"{wait_seconds}s"}
        lines = await self._lines("dag/import", parameters, form, wait_seconds)
        check_import(cid, lines)
        kept = name[:PIN_NAME_BYTES_MAX] if earlier is None else earlier
        if kept:
            # The import erases the name of a pin, so it is set after it.
            await self._one("pin/add", arg=str(cid), name=kept)

    async def provide(self, cid: Cid) -> None:
        try:
            lines = await self._lines("provide/once", {"arg": str(cid)}, None, 60)
        except Refused as refused:
            if refused.code is not Code.UNKNOWN:
                raise
            lines = await self._lines("routing/provide", {"arg": str(cid)}, None, 60)
        for line in lines:
            if line.get("Type") == "error" or line.get("Message"):
                raise _refused("provide", str(line.get("Message")))

    async def _one(self, command: str, **parameters: str) -> Json:
        lines = await self._lines(command, parameters, None, SHORT.total or 30.0)
        return lines[0] if lines else {}

    async def _lines(
        self,
        command: str,
        parameters: dict[str, str],
        form: aiohttp.FormData | None,
        seconds: float,
    ) -> list[Json]:
        url = f"{self._url}/api/v0/{command}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=seconds + 30.0)
        try:
            async with self._session.post(
                url, params=parameters, data=form, timeout=timeout, allow_redirects=False
            ) as answer:
                body, status = await read_bounded(answer, ANSWER_BYTES_MAX), answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(
                f"the Kubo at {self._url} does not answer ({str(error) or type(error).__name__})",
                5.0,
            ) from error
        if status == 404:
            raise Refused(Code.UNKNOWN, f"the Kubo at {self._url} does not know {command}")
        if status in (401, 403):
            raise Refused(
                Code.NOT_YOURS, f"the Kubo at {self._url} wants credentials for {command}"
            )
        lines = _json_lines(body)
        if status != 200:
            said = lines[0].get("Message") if lines else body[:200].decode(errors="replace")
            raise _refused(command, str(said))
        return lines


def check_import(cid: Cid, lines: list[Json]) -> None:
    """Checks the answer of `dag/import`: exactly our root, and no error of its pin. Raises
    `Refused(MALFORMED)`.
    """
    for line in lines:
        root = line.get("Root")
        if not isinstance(root, dict):
            continue
        named = cast(Json, root).get("Cid")
        if isinstance(named, dict) and named.get("/") == str(cid):
            problem = cast(Json, root).get("PinErrorMsg")
            if problem:
                raise _refused("dag/import", str(problem))
            return
    raise _refused("dag/import", "it did not name our root")


def gateway_of(multiaddr: str, rpc_url: str) -> str:
    """Returns the URL of a gateway at a multiaddr such as /ip4/127.0.0.1/tcp/8080, or "". A gateway
    on all addresses is reached where the RPC is.
    """
    parts = multiaddr.strip("/").split("/")
    if len(parts) < 4 or parts[0] not in ("ip4", "ip6", "dns", "dns4", "dns6") or parts[2] != "tcp":
        return ""
    host = parts[1]
    if host in ("0.0.0.0", "::"):
        host = urlsplit(rpc_url).hostname or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{parts[3]}"


def _json_lines(body: bytes) -> list[Json]:
    found: list[Json] = []
    for line in body.splitlines():
        try:
            tree = json.loads(line)
        except ValueError:
            continue  # errors come as plain text, and the caller quotes them
        if isinstance(tree, dict):
            found.append(tree)
    return found


def _refused(command: str, said: str) -> Refused:
    return Refused(Code.MALFORMED, f"Kubo {command}: {said[:300]}")
