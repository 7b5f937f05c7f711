"""Decides which source a fetch asks next, for what, and for how long. Pure.

A fetch goes through its sources in their order. A source that searches its own network (an IPFS
gateway) is first asked only whether it has the content at hand. If it has not, it is asked to
search after all other sources. A failed source gets another turn after the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import quote, urlsplit

from quorate_content.dag.cid import Cid
from quorate_content.dag.content_limits import MIB
from quorate_content.dag.walk import DagWalk, Role, TreePath

TRIES_WITHOUT_PROGRESS = 3
FIND_SECONDS = 12.0  # for all sources together, until the first one sends a block
PROBE_SECONDS = 2.0
ANSWER_SECONDS_MIN = 0.5
RETRY_AFTER_MAX = 30.0
# From this mean size on, a cut directory is continued with one request for each file. Smaller files
# would cost more in round trips than in bytes that are sent twice. Our own gateways leave out what
# was sent. Others send it again; one that is cut off meanwhile is asked for single files too.
ENTRY_BYTES_MEAN = MIB


@dataclass(frozen=True, slots=True)
class Source:
    """A trustless gateway, for example `http://host:port/ipfs`, used as `GET
    <url>/<cid>?format=car`.

    `headers` are for private content. Without `may_be_private`, addresses in private networks are
    refused, so that strangers cannot direct requests into our own network. `name` is for messages
    and byte counts. A source that `searches` looks for absent content in its own network.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    may_be_private: bool = True
    name: str = ""
    searches: bool = False

    @property
    def label(self) -> str:
        """Returns the name, or else the URL, cut to a bounded length."""
        return (self.name or self.url)[:200]


def in_order(*groups: Iterable[Source]) -> tuple[Source, ...]:
    found: dict[str, Source] = {}
    for group in groups:
        for source in group:
            found.pop(source.url.rstrip("/"), None)
            found[source.url.rstrip("/")] = source
    return tuple(found.values())


def gateway_source(kind: str, url: str, may_be_private: bool = True) -> Source:
    """Returns the source of an IPFS gateway, whose URL may end with /ipfs. A gateway that this
    machine's user named may be in a private network; one that a stranger named may not.
    """
    base = url.rstrip("/")
    if not base.endswith("/ipfs"):
        base += "/ipfs"
    return Source(base, may_be_private=may_be_private, name=host_name(kind, base), searches=True)


def host_name(kind: str, url: str) -> str:
    """Returns a source's name for byte counts: its kind and its host, without a path."""
    try:
        place = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:  # the fetch reports that the URL is wrong
        place = ""
    return f"{kind} {place[:120] or 'without a host'}"


# ------------------------------------------------------------------------------ who is asked next


class Answer(Enum):
    """What a source did."""

    HAS = "has"  # a probe found the content at hand, or it sent what was asked for
    NOT_AT_HAND = "not at hand"  # a probe did not; the source may find it in its network
    UNCLEAR = "unclear"  # the source does not know probes
    ROOTS_ONLY = "roots only"  # it does not serve a file of the directory by the file's own CID
    FAILED = "failed"  # it could not be reached or was busy, and may succeed later
    CUT = "cut"  # its answer ended early
    USELESS = "useless"  # it does not have the content, or sent something else


@dataclass(frozen=True, slots=True)
class Turn:
    """One source's place in the queue, and what is known of it."""

    source: Source
    needs_probe: bool
    tries_left: int = TRIES_WITHOUT_PROGRESS
    pause_seconds: float = 0.0  # before it is asked
    serves_roots_only: bool = False
    sends_again: bool = False  # cut off before it came to a new file of a directory


Turns = tuple[Turn, ...]


def first_turns(sources: Iterable[Source]) -> Turns:
    return tuple(Turn(source, source.searches) for source in sources)


def after(
    turns: Turns, answer: Answer, has_progressed: bool = False, pause_seconds: float = 0.2
) -> Turns:
    """Returns the queue after the first source's answer. `has_progressed`: it sent right blocks."""
    turn, others = turns[0], turns[1:]
    match answer:
        case Answer.HAS | Answer.UNCLEAR:
            return (replace(turn, needs_probe=False, pause_seconds=0.0), *others)
        case Answer.ROOTS_ONLY:
            return (replace(turn, serves_roots_only=True, pause_seconds=0.0), *others)
        case Answer.NOT_AT_HAND:
            # One turn only: a search ends by our limit, and another one would take as long.
            return (*others, replace(turn, needs_probe=False, tries_left=1))
        case Answer.FAILED | Answer.CUT:
            left = TRIES_WITHOUT_PROGRESS if has_progressed else turn.tries_left - 1
            pause = min(pause_seconds, RETRY_AFTER_MAX)
            stuck = turn.sends_again or (answer is Answer.CUT and not has_progressed)
            again = replace(turn, tries_left=left, pause_seconds=pause, sends_again=stuck)
            return (*others, again) if left > 0 else others
        case Answer.USELESS:
            return others


def answer_seconds(turns: Turns, left_seconds: float) -> float:
    """Returns how long the first source's answer may take to begin. It is an equal share of the
    time that is left until some source must have answered. A probe takes less.
    """
    if turns[0].needs_probe:
        return min(PROBE_SECONDS, max(ANSWER_SECONDS_MIN, left_seconds))
    return max(ANSWER_SECONDS_MIN, left_seconds / len(turns))


# ----------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True, slots=True)
class CarRequest:
    """A CAR to ask for: of `cid`, which stands at `within` in the DAG. `query` continues it."""

    cid: Cid
    within: TreePath = ()
    query: str = "format=car"


def next_request(
    root: Cid, walk: DagWalk, roots_only: bool = False, sends_again: bool = False
) -> CarRequest:
    """Returns the request that continues a walk. A file continues at its byte offset.

    A directory of large files continues file by file, so that nothing is sent twice. Kubo honours
    `entity-bytes` only together with `dag-scope=entity`. Only our own gateways know `from-entry`.
    """
    entry, expected = walk.entry, walk.expected
    if entry is None or expected is None or walk.files_opened == 0:
        return CarRequest(root)  # nothing is known of the files' sizes yet
    is_inside = entry.path != ()
    are_small = walk.bytes_opened < ENTRY_BYTES_MEAN * walk.files_opened and not sends_again
    if is_inside and (roots_only or are_small):
        path = quote(b"/".join(entry.path))
        return CarRequest(root, query=f"format=car&from-entry={path}")
    if expected.role is Role.SHARD:
        return CarRequest(expected.cid, expected.path)
    cid = entry.cid if is_inside else root
    if expected.role is Role.FILE and expected.offset:
        query = f"format=car&dag-scope=entity&entity-bytes={expected.offset}:*"
        return CarRequest(cid, expected.path, query)
    return CarRequest(cid, expected.path)
