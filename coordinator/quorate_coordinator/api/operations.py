"""The table of the API's routes: for each its parameters, its answer, and whether it needs a token.
A test compares it with the mounted routes.
"""

from msgspec import Struct

from quorate_coordinator.api.responses import Cases, Done, Health, Offers, Runs, Stored
from quorate_coordinator.base.operator_view import OperatorView
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import (
    AccountView,
    AckView,
    GiveBackRequest,
    GiveBackView,
    ImportedLogs,
    InfoView,
    ObservedView,
    PlanRequest,
    PlanView,
    ProviderView,
    ReputationHead,
    ReputationLog,
    RunView,
)
from quorate_protocol.rules.orders import Submission

TEXT = "text/plain"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"
CAR = "application/vnd.ipld.car"
RAW = "application/vnd.ipld.raw"
JSON = "application/json"


class Query(Struct, frozen=True):
    """One query parameter; `pattern` is a regular expression of its text."""

    name: str
    pattern: str
    meaning: str


class Operation(Struct, frozen=True):
    """One route. `answer` and `body` are types of the codec, or media types where the content is
    not our JSON.
    """

    method: str
    path: str
    summary: str
    answer: object
    body: object = None
    needs_token: bool = False
    queries: tuple[Query, ...] = ()


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
CLASS = Query("class", "^0x[0-9a-f]{64}$", "only this host class")
NEXT = Query("after", "^[0-9]{1,12}-[0-9a-f]{64}$", "`next` of the page before")
FROM = Query("after", "^0x[0-9a-f]{40}$", "rows after the one of this provider, for the next page")

LINE = Query("after", "^[0-9]{1,18}$", "only lines with a greater number")
PROVIDER = Query("provider", "^0x[0-9a-f]{40}$", "only this provider")
LINES = Query("limit", "^[0-9]{1,4}$", "lines in one page, 1 to 256")

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/openapi.json", "This document.", JSON),
    Operation("GET", "/v1/info", "Addresses, keys, fee and limits of this deployment.", InfoView),
    Operation("GET", "/v1/observed", "The IP address from which this request came.", ObservedView),
    Operation(
        "GET",
        "/v1/health",
        "Whether the coordinator works, how far it follows the chain, and every problem.",
        Health,
    ),
    Operation(
        "GET", "/v1/ready", "Whether the coordinator can work; 503 names every problem.", Done
    ),
    Operation(
        "GET",
        "/v1/offers",
        "All known offers, live or not, in pages.",
        Offers,
        queries=(PAGE, FROM),
    ),
    Operation(
        "GET",
        "/v1/market/history",
        "Supply, prices and volume of the market by hour or day and host class, in pages.",
        MarketHistory,
        queries=(BY, SINCE, UNTIL, CLASS, PAGE, NEXT),
    ),
    Operation(
        "POST", "/v1/plan", "What an order for this spec would meet now.", PlanView, PlanRequest
    ),
    Operation(
        "POST",
        "/v1/sessions",
        "Makes a session key known before the first order.",
        Done,
        Envelope[Session],
    ),
    Operation(
        "POST",
        "/v1/orders",
        "Orders a job; the same order again gives the same job.",
        AckView,
        Submission,
    ),
    Operation(
        "GET",
        "/v1/runs",
        "The runs of the client that the token names, newest first.",
        Runs,
        needs_token=True,
    ),
    Operation(
        "GET",
        "/v1/runs/{job}",
        "One run, for its client, and in part for its executors and jurors; a public one for all.",
        RunView,
    ),
    Operation(
        "POST",
        "/v1/runs/{job}/stop",
        "Stops a job; the client pays for elapsed time.",
        Done,
        Envelope[Stop],
    ),
    Operation(
        "GET",
        "/v1/runs/{job}/events",
        "The run's history, for its client; of a public run that is over, for everybody.",
        EVENTS,
        needs_token=True,
        queries=(AFTER,),
    ),
    Operation(
        "GET",
        "/v1/runs/{job}/logs",
        "The run's log text, for its client; of a public run that is over, for everybody.",
        TEXT,
        needs_token=True,
        queries=(FOLLOW,),
    ),
    Operation(
        "GET",
        "/v1/events",
        "The history of all runs of a client.",
        EVENTS,
        needs_token=True,
        queries=(AFTER,),
    ),
    Operation(
        "POST",
        "/v1/witnesses",
        "Takes a client's countersignature of a commit before its beacon round.",
        Done,
        Envelope[Witness],
    ),
    Operation(
        "POST",
        "/v1/vouchers",
        "Takes a client's voucher, which pays cumulatively.",
        Done,
        Envelope[Voucher],
    ),
    Operation(
        "GET",
        "/v1/receipts/{job}",
        "The run's receipt, for its client, its executors and jurors; a public one for everybody.",
        ReceiptFile,
    ),
    Operation(
        "GET",
        "/v1/accounts/{address}",
        "A client's money at this coordinator, for the client only.",
        AccountView,
        needs_token=True,
    ),
    Operation(
        "POST",
        "/v1/give-back",
        "Frees what neither vouchers nor jobs of the client need in its tab; the transaction "
        "follows.",
        GiveBackView,
        GiveBackRequest,
        needs_token=True,
    ),
    Operation("GET", "/v1/providers/{address}", "A provider's record and money.", ProviderView),
    Operation(
        "GET", "/v1/reputation", "Length and root of the coordinator's public log.", ReputationHead
    ),
    Operation(
        "GET",
        "/v1/reputation/log",
        "Lines of the public log, in order; `quorate reputation` checks and folds them.",
        ReputationLog,
        queries=(LINE, LINES),
    ),
    Operation(
        "GET",
        "/v1/reputation/imported",
        "What the logs of other coordinators say, as far as this one has checked them.",
        ImportedLogs,
        queries=(PROVIDER,),
    ),
    Operation("GET", "/v1/cases", "Court cases known here.", Cases),
    Operation(
        method="PUT",
        path="/v1/content",
        summary="Uploads a file, or with `root` a CAR, under the account's quota.",
        answer=Stored,
        body=BYTES,
        needs_token=True,
        queries=(ROOT,),
    ),
    Operation(
        "GET",
        "/v1/content/{cid}",
        "Stored content, as a trustless gateway serves it to those that may read it.",
        BYTES,
        queries=(FORMAT, SCOPE, RANGE),
    ),
    Operation("GET", "/v1/peers", "The WebSocket that providers connect to.", TEXT),
    Operation(
        "GET", "/v1/operator", "Everything for the operator, as /metrics: see there.", OperatorView
    ),
    Operation(
        "GET",
        "/metrics",
        "Metrics in Prometheus' text format, for this machine and the networks that the operator "
        "named.",
        TEXT,
    ),
)
