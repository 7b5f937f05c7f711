"""The routes of the coordinator's HTTP API: what each takes, what it answers, who may ask.

The coordinator mounts them and makes its OpenAPI document of them. Clients and providers build
their requests from them.
"""

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import (
    AccountView,
    AckView,
    AllowanceRequest,
    CaseView,
    GiveBackRequest,
    GiveBackView,
    ImportedLogs,
    InfoView,
    ObservedView,
    OfferView,
    PlanRequest,
    PlanView,
    ProviderView,
    ReputationHead,
    ReputationLog,
    RunView,
)
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import UnixSeconds
from quorate_runtime.process.health import Problem

A = TypeVar("A")
# Media types are typed Any, because they stand where a route has a type of the codec.
TEXT: Any = "text/plain"
EVENT_STREAM: Any = "text/event-stream"
BYTES: Any = "application/octet-stream"
CAR = "application/vnd.ipld.car"
RAW = "application/vnd.ipld.raw"
JSON: Any = "application/json"


class Query(Struct, frozen=True):
    """One query parameter; `pattern` is a regular expression of its text."""

    name: str
    pattern: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Route(Generic[A]):
    """One route; `call` is its method and path. `answer` and `body` are types of the codec, or
    media types where the content is not our JSON.
    """

    call: str
    summary: str
    answer: type[A]
    body: object = None
    needs_token: bool = False
    queries: tuple[Query, ...] = ()
    tokens: float = 1.0  # of the asking address; more for a request that takes long

    @property
    def method(self) -> str:
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        """With parameters in braces."""
        return self.call.partition(" ")[2]

    def at(self, **values: bytes | int | str) -> str:
        """Returns path and query with these values. Bytes become 0x-hex."""
        texts = {
            name: f"0x{value.hex()}" if isinstance(value, bytes) else quote(str(value), safe="")
            for name, value in values.items()
        }
        path = re.sub(r"{(\w+)}", lambda found: texts.pop(found[1]), self.path)
        query = "&".join(f"{name}={text}" for name, text in texts.items())
        return f"{path}?{query}" if query else path


class Done(Struct, frozen=True):
    """The request was accepted and is durable. Repeating it changes nothing."""


class Health(Struct, frozen=True):
    """GET /v1/health. `live` counts jobs under way; `ok` means that there is no problem."""

    ok: bool
    block: int
    chain_lag_seconds: int
    live: int
    problems: tuple[Problem, ...]


class PoolOnOffer(Struct, frozen=True):
    """Run slots on offer now in one pool, and what an hour of one costs."""

    name: str
    owners: int
    slots: int
    cheapest_usd: str
    median_usd: str  # over the offers


class FrontPage(Struct, frozen=True):
    """GET /: people get it as a page. `deployment_hash` is that of the contracts' document."""

    pools: tuple[PoolOnOffer, ...]
    info: InfoView
    deployment_hash: str
    at: UnixSeconds


class Offers(Struct, frozen=True):
    """GET /v1/offers"""

    offers: tuple[OfferView, ...]


class Runs(Struct, frozen=True):
    """GET /v1/runs"""

    runs: tuple[RunView, ...]


class Cases(Struct, frozen=True):
    """GET /v1/cases"""

    cases: tuple[CaseView, ...]


class Stored(Struct, frozen=True):
    """PUT /v1/content: the CID of the upload, and the size of its files in bytes."""

    cid: str
    size: int


class ReceiptFile(Struct, frozen=True):
    """GET /v1/receipts/{job}: the receipt's body and the CID of its canonical bytes."""

    body: Receipt
    cid: str


AFTER = Query(
    "after",
    "^[0-9]{1,18}$",
    "only events with a greater sequence number; the header Last-Event-ID overrides it",
)
FOLLOW = Query("follow", "^[01]$", "1: stream until the run ends")
ROOT = Query("root", "^[a-z2-7]{1,120}$", "root CID of an uploaded CAR")
FORMAT = Query(
    "format", "^(raw|car)$", "a raw block or a CAR; without it the plain bytes of a file"
)
SCOPE = Query("dag-scope", "^(all|entity|block)$", "how much of the DAG a CAR holds")
RANGE = Query("entity-bytes", "^[0-9]{1,18}:[*]$", "from which byte a CAR starts")
PAGE = Query("limit", "^[0-9]{1,4}$", "rows in one page, 1 to 1000")
BY = Query("by", "^(hour|day)$", "length of a period; hour unless given")
SINCE = Query(
    "since",
    "^[0-9]{1,12}$",
    "Unix seconds in the first period; 7 days before `until` unless given; at most 31 days by "
    "hour, 400 by day",
)
UNTIL = Query("until", "^[0-9]{1,12}$", "Unix seconds; periods that begin before; now unless given")
POOL = Query("pool", "^0x[0-9a-f]{64}$", "only this pool")
NEXT = Query("after", "^[0-9]{1,12}-[0-9a-f]{64}$", "`next` of the page before")
FROM = Query("after", "^0x[0-9a-f]{40}$", "rows after the one of this provider, for the next page")
LINE = Query("after", "^[0-9]{1,18}$", "only lines with a greater number")
OF_PROVIDER = Query("provider", "^0x[0-9a-f]{40}$", "only this provider")
LINES = Query("limit", "^[0-9]{1,4}$", "lines in one page, 1 to 256")


class Routes:
    """All routes but those for the operator alone, in the order of the OpenAPI document."""

    FRONT_PAGE = Route(
        "GET /",
        "What is on offer, and which contracts hold the money; for people a page.",
        FrontPage,
    )
    OPENAPI = Route("GET /v1/openapi.json", "This document.", JSON)
    INFO = Route("GET /v1/info", "Addresses, keys, fee and limits of this deployment.", InfoView)
    OBSERVED = Route(
        "GET /v1/observed", "The IP address from which this request came.", ObservedView
    )
    HEALTH = Route(
        "GET /v1/health",
        "Whether the coordinator works, how far it follows the chain, and every problem.",
        Health,
    )
    READY = Route(
        "GET /v1/ready", "Whether the coordinator can work; 503 names every problem.", Done
    )
    OFFERS = Route(
        "GET /v1/offers", "All known offers, live or not, in pages.", Offers, queries=(PAGE, FROM)
    )
    MARKET_HISTORY = Route(
        "GET /v1/market/history",
        "Supply, prices and volume of the market by hour or day and pool, in pages.",
        MarketHistory,
        queries=(BY, SINCE, UNTIL, POOL, PAGE, NEXT),
    )
    PLAN = Route(
        "POST /v1/plan",
        "What an order for this spec would meet now.",
        PlanView,
        PlanRequest,
        tokens=10.0,
    )
    SESSION = Route(
        "POST /v1/sessions",
        "Makes a session key known before the first order.",
        Done,
        Envelope[Session],
    )
    ORDER = Route(
        "POST /v1/orders",
        "Orders a job; the same order again gives the same job.",
        AckView,
        Submission,
    )
    RUNS = Route(
        "GET /v1/runs",
        "The runs of the client that the token names, newest first.",
        Runs,
        needs_token=True,
    )
    RUN = Route(
        "GET /v1/runs/{job}",
        "One run, for its client, and in part for its executors and jurors; a public one for all.",
        RunView,
    )
    STOP = Route(
        "POST /v1/runs/{job}/stop",
        "Stops a job; the client pays for elapsed time.",
        Done,
        Envelope[Stop],
    )
    SECRETS = Route(
        "POST /v1/runs/{job}/secrets",
        "Passes a box of secrets on to the provider of a rental, for its client; never stored.",
        Done,
        BYTES,
        needs_token=True,
    )
    ALLOWANCE = Route(
        "POST /v1/runs/{job}/allowance",
        "Says how much a rental may cost in all, for its client; it only rises.",
        Done,
        AllowanceRequest,
        needs_token=True,
    )
    RUN_EVENTS = Route(
        "GET /v1/runs/{job}/events",
        "The run's history, for its client; of a public run that is over, for everybody.",
        EVENT_STREAM,
        needs_token=True,
        queries=(AFTER,),
    )
    RUN_LOGS = Route(
        "GET /v1/runs/{job}/logs",
        "The run's log text, for its client; of a public run that is over, for everybody.",
        TEXT,
        needs_token=True,
        queries=(FOLLOW,),
    )
    STREAM = Route(
        "GET /v1/runs/{job}/stream",
        "A WebSocket to a rental that runs, for its client: SSH in binary messages.",
        TEXT,
        needs_token=True,
    )
    DIALED_STREAM = Route(
        "GET /v1/streams/{ticket}",
        "The other end of such a WebSocket, which the provider dials.",
        TEXT,
    )
    EVENTS = Route(
        "GET /v1/events",
        "The history of all runs of a client.",
        EVENT_STREAM,
        needs_token=True,
        queries=(AFTER,),
    )
    WITNESS = Route(
        "POST /v1/witnesses",
        "Takes a client's countersignature of a commit before its beacon round.",
        Done,
        Envelope[Witness],
    )
    VOUCHER = Route(
        "POST /v1/vouchers",
        "Takes a client's voucher, which pays cumulatively.",
        Done,
        Envelope[Voucher],
    )
    RECEIPT = Route(
        "GET /v1/receipts/{job}",
        "The run's receipt, for its client, its executors and jurors; a public one for everybody.",
        ReceiptFile,
    )
    ACCOUNT = Route(
        "GET /v1/accounts/{address}",
        "A client's money at this coordinator, for the client only.",
        AccountView,
        needs_token=True,
    )
    GIVE_BACK = Route(
        "POST /v1/give-back",
        "Frees what neither vouchers nor jobs of the client need in its tab; the transaction "
        "follows.",
        GiveBackView,
        GiveBackRequest,
        needs_token=True,
    )
    PROVIDER = Route("GET /v1/providers/{address}", "A provider's record and money.", ProviderView)
    REPUTATION = Route(
        "GET /v1/reputation", "Length and root of the coordinator's public log.", ReputationHead
    )
    REPUTATION_LOG = Route(
        "GET /v1/reputation/log",
        "Lines of the public log, in order; `quorate reputation` checks and folds them.",
        ReputationLog,
        queries=(LINE, LINES),
    )
    REPUTATION_IMPORTED = Route(
        "GET /v1/reputation/imported",
        "What the logs of other coordinators say, as far as this one has checked them.",
        ImportedLogs,
        queries=(OF_PROVIDER,),
    )
    CASES = Route("GET /v1/cases", "Court cases known here.", Cases)
    UPLOAD = Route(
        "PUT /v1/content",
        "Uploads a file, or with `root` a CAR, under the account's quota.",
        Stored,
        BYTES,
        needs_token=True,
        queries=(ROOT,),
    )
    CONTENT = Route(
        "GET /v1/content/{cid}",
        "Stored content, as a trustless gateway serves it to those that may read it.",
        BYTES,
        queries=(FORMAT, SCOPE, RANGE),
    )
    ATTESTATION_UPLOAD = Route(
        "PUT /ipfs",
        "Uploads a provider's attestation document or a proof, which anybody may read.",
        Stored,
        BYTES,
        needs_token=True,
    )
    ATTESTATION = Route(
        "GET /ipfs/{cid}",
        "An attestation document or a proof, as a trustless gateway serves it.",
        BYTES,
        queries=(FORMAT, SCOPE, RANGE),
    )
    PEERS = Route("GET /v1/peers", "The WebSocket that providers connect to.", TEXT)


WEBSOCKETS = (Routes.STREAM, Routes.DIALED_STREAM, Routes.PEERS)

ROUTES: tuple[Route[Any], ...] = tuple(
    item for item in vars(Routes).values() if isinstance(item, Route)
)
