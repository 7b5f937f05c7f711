"""The staging store: uploads of clients and ciphertexts of providers, each in its own part.

A ciphertext counts for its provider until the provider commits to it, within what its leases allow.
Then it counts for the client that pays for the run. Content that runs in the state name is deleted
only when its owner holds more than its money buys.
"""

import asyncio
import logging
import re
from collections import Counter
from pathlib import Path

from aiohttp import web

from quorate_content.dag.cid import Cid, parse
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.store.index import Owner, PinNeed, PinTransfer
from quorate_content.transfer.gateway import CAR_TYPE
from quorate_content.transfer.root_size import root_from
from quorate_content.transfer.upload_limits import (
    KEEP_SECONDS,
    UploadGrant,
    UploadSlots,
    UploadThrottle,
)
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.storage_sizes import StagingQuota, ciphertext_most
from quorate_coordinator.core.model.entities import Client, Decided, Ended, Job
from quorate_coordinator.core.model.lease import Accepted, Closed, Committed, Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.output_access import Outputs
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.limits import EXECUTIONS_VERIFIED
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import Clock
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Hash32
from quorate_runtime.http.client_networks import network_of

SPARE_BYTES = 512 << 20  # of disk that uploads leave free for journal, archive and documents
UNCOMMITTED = "/uncommitted"
UNCOMMITTED_SECONDS = 3_600.0  # after commitBy
SMALL_PLACES, SMALL_ACCOUNT_PLACES = 8, 2
ACCOUNT_NAME = re.compile("0x[0-9a-f]{40}")
WEIGH_SECONDS = 60.0
LINE_LOOK_SECONDS = 1.0
ROOT_SECONDS = 30.0
FINAL_SECONDS = 31 * 3_600.0  # inputs and image are kept so long after finality
FAULTED_SECONDS = 14 * 86_400.0  # of runs with a fault, because a court executes them again
MOVES_MAX = 256

log = logging.getLogger(__name__)


class InUse:
    """Digests of inputs and images that runs in the state name. Other threads may ask."""

    def __init__(self, state: State) -> None:
        self._state, self._changed = state, state.jobs.follow()
        self._named: dict[Hash32, tuple[Hash32, ...]] = {}  # by job
        self._uses: Counter[Hash32] = Counter()
        # by job: (seconds asked for last, client's name)
        self._until: dict[Hash32, tuple[float, str]] = {}
        # pins to extend: (seconds from now, digest, client's name)
        self.fresh: list[tuple[float, Hash32, str]] = []

    def refresh(self) -> None:
        for job_id in self._changed:
            job = self._state.jobs.get(job_id)
            if job is None:
                seconds, client = self._until.pop(job_id, (0.0, ""))
                if seconds:
                    self.fresh += [
                        (FINAL_SECONDS, digest, client) for digest in self._named[job_id]
                    ]
                self._uses.subtract(named := self._named.pop(job_id, ()))
                for digest in named:
                    if not self._uses[digest]:
                        del self._uses[digest]
            elif job_id in self._named:
                self._keep(job, self._named[job_id])
            elif named := named_by(job):
                self._named[job_id] = named
                self._uses.update(named)
                self._keep(job, named)
        self._changed.clear()

    def _keep(self, job: Job, named: tuple[Hash32, ...]) -> None:
        """Content was uploaded before the run and is needed after it."""
        seconds = KEEP_SECONDS
        if isinstance(job.phase, Decided) and job.phase.verdict.message.faulted:
            seconds = FAULTED_SECONDS
        client = owner_name(job.order.client)
        if self._until.get(job.id) != (seconds, client):
            self._until[job.id] = seconds, client
            self.fresh += [(seconds, digest, client) for digest in named]

    def __contains__(self, digest: Hash32) -> bool:
        return digest in self._uses


def named_by(job: Job) -> tuple[Hash32, ...]:
    return tuple(cid_parts(cid)[1] for cid in sorted(job.submission.spec.kept()))


class Staging:
    """Three stores in one folder, and the rules that say who may put what into which."""

    def __init__(
        self,
        folder: Path,
        shares: StagingQuota,
        state: State,
        claims: Outputs,
        rates: RequestRates,
        clock: Clock,
        hold_seconds: float,
    ) -> None:
        """`hold_seconds` is the longest time from a commit until its run is final."""
        self._shares, self._state, self.claims, self._rates, self._clock = (
            shares,
            state,
            claims,
            rates,
            clock,
        )
        self._in_use = InUse(state)
        self._weighed_at, self._hold_seconds = clock.now(), hold_seconds
        spare, now, bounds = SPARE_BYTES, clock.now, rates.bounds
        self.uploads = ContentStore(
            folder / "uploads", shares.uploads, None, spare, now, self._is_input
        )
        self.small = ContentStore(folder / "small", shares.small, None, spare, now, self._is_input)
        self.outputs = ContentStore(
            folder / "outputs", shares.outputs, None, spare, now, self._is_output
        )
        self._places = UploadSlots(network_most=bounds.address_uploads_max)
        self._small_places = UploadSlots(SMALL_PLACES, SMALL_ACCOUNT_PLACES)
        self._output_places = UploadSlots()

    @property
    def stores(self) -> tuple[ContentStore, ...]:
        return self.outputs, self.uploads, self.small

    def check_output(self, spec: JobSpec) -> None:
        """Refuses an order whose outputs do not fit three times: the upload would fail, and be the
        lapse of an honest provider.
        """
        most, asked = self._shares.outputs // EXECUTIONS_VERIFIED, spec.resources.output_bytes
        if asked > most:
            raise Refused(
                Code.OVERSIZE,
                f"order: outputs of {size_text(asked)} are asked for, this coordinator keeps "
                f"{size_text(most)} of an execution; ask for less, or another coordinator",
            )

    async def has(self, digest: Hash32) -> bool:
        """Readers are served from all of the stores."""
        found = [await store.resolve(digest) for store in self.stores]
        return any(cid is not None for cid in found)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    def _is_input(self, cid: str) -> PinNeed:
        return PinNeed.USED if parse(cid).digest in self._in_use else PinNeed.NONE

    def _is_output(self, cid: str) -> PinNeed:
        """Until the reveal, the CommitReceipt promises its provider that the store has it. Without
        it an honest provider could not reveal, or its result could not be compared (I3).
        """
        holder = self.claims.by_digest.get(parse(cid).digest)
        if holder is None:
            return PinNeed.NONE
        lease = self._state.leases.get(holder)
        if lease is None:
            return PinNeed.USED
        job = self._state.jobs[lease.job_id]
        is_compared = not job.is_exact and not isinstance(job.phase, Decided | Ended)
        is_promised = is_compared or isinstance(lease.phase, Committed | Closed)
        return PinNeed.PROMISED if is_promised else PinNeed.USED

    # ------------------------------------------------------------------------------- who may upload

    def grant(
        self, account: Address, request: web.Request, has_balance: bool = False
    ) -> UploadGrant:
        """What this account may upload now. One with a balance on chain may upload a little before
        its first order, which has an escrow of its own. Raises `Refused(NOT_REGISTERED |
        WRONG_PHASE)`.
        """
        self._in_use.refresh()
        leases = self._awaited(account) if request.content_type != CAR_TYPE else []
        if leases:
            return self._for_output(account, leases)
        client = self._state.clients.get(account)
        if client is not None or has_balance:
            line = self._line(network_of(request.remote))
            return self._for_client(client or Client(account), line)
        if account in self._state.providers:
            when = "send it between Accept and Commit"
            raise Refused(
                Code.WRONG_PHASE,
                f"upload: no execution of {owner_name(account)} waits for an output; {when}",
            )
        raise Refused(
            Code.NOT_REGISTERED,
            (f"upload: {owner_name(account)} has no execution and no money here; deposit first"),
        )

    def _awaited(self, provider: Address) -> list[Lease]:
        leases = (
            self._state.leases.get(digest)
            for digest in self._state.leases_in_slots.get(provider) or ()
        )
        return [
            lease for lease in leases if lease is not None and isinstance(lease.phase, Accepted)
        ]

    def _for_output(self, provider: Address, leases: list[Lease]) -> UploadGrant:
        jobs = [self._state.jobs[lease.job_id] for lease in leases]
        allowed = [ciphertext_most(job.submission.spec.resources) for job in jobs]
        weight = sum(_locked(self._state, client) for client in {job.order.client for job in jobs})
        commit_by = max(
            lease.phase.commit_by for lease in leases if isinstance(lease.phase, Accepted)
        )
        remedy = (
            "outputs of its executions that wait for a commit may be so large: "
            "resources.outputBytes"
        )
        owner = Owner(owner_name(provider) + UNCOMMITTED, sum(allowed), weight, remedy)
        return UploadGrant(
            self.outputs,
            owner,
            self._output_places,
            commit_by + UNCOMMITTED_SECONDS,
            max(allowed),
            is_awaited=True,
        )

    async def take_in(
        self,
        cid: Cid,
        client: Address,
        bytes_max: int,
        sources: tuple[Source, ...],
        deadline_seconds: float,
    ) -> None:
        """Fetches an input, which counts for the client like an upload.

        If another account has uploaded it, a source must still show its root block. So a client
        gets no access to private content by naming its CID.

        Raises `Refused(OVERSIZE)` beyond `bytes_max`, `Refused(QUOTA)` beyond the client's share,
        `Unavailable` if no source has it.
        """
        for store in (self.uploads, self.small):
            if await store.is_pinned_for(cid, owner_name(client)):
                return
        grant = self._for_client(self._state.clients.get(client) or Client(client), None)
        if await grant.store.stat(cid) is not None:
            await asyncio.to_thread(root_from, sources, cid, ROOT_SECONDS)
        async with await grant.store.get(cid, sources, bytes_max, deadline_seconds, grant.owner):
            await grant.store.pin(cid, grant.owner, grant.until)

    def _for_client(self, client: Client, line: UploadThrottle | None) -> UploadGrant:
        shares, unspent = self._shares, _unspent(client)
        bought, until = shares.bought(unspent), self._clock.now() + KEEP_SECONDS
        each = (
            f"{shares.bytes_per_usd} bytes for each USD deposited and not spent, at most "
            f"{shares.account}"
        )
        remedy = (
            f"deposit more ({each}), or wait: uploads end after {round(KEEP_SECONDS / 86_400)} days"
        )
        is_small = bought <= shares.floor_bytes
        owner = Owner(
            owner_name(client.account), shares.floor_bytes if is_small else bought, unspent, remedy
        )
        store, places = (
            (self.small, self._small_places) if is_small else (self.uploads, self._places)
        )
        return UploadGrant(store, owner, places, until, line=line)

    def _line(self, network: str) -> UploadThrottle:
        bytes_by_network = self._rates.by_upload

        async def wait(size: int) -> None:
            while seconds := bytes_by_network.take(network, size):
                await self._clock.sleep(min(seconds, LINE_LOOK_SECONDS))

        return wait

    # ------------------------------------------------------------------------ pins and weights

    async def refresh(self) -> None:
        """Extends pins, which promise to keep content until a time. Charges committed ciphertexts
        to the client's share instead of the provider's. Updates how much money each owner has,
        because shares follow that.
        """
        self._in_use.refresh()
        try:
            await self._extend_pins()
            await self._move_to_clients()
            if self._clock.now() - self._weighed_at >= WEIGH_SECONDS:
                self._weighed_at = self._clock.now()
                await self._update_weights()
        except Unavailable as error:
            # not re-raised: the next refresh does the rest
            log.warning("the staging store: %s", error)

    async def _extend_pins(self) -> None:
        """Never shortens one."""
        while batch := self._in_use.fresh[:MOVES_MAX]:
            for seconds in sorted({item[0] for item in batch}):
                named = [(digest, client) for asked, digest, client in batch if asked == seconds]
                await self.uploads.extend_pins(named, self._clock.now() + seconds)
                await self.small.extend_pins(named, self._clock.now() + seconds)
            del self._in_use.fresh[: len(batch)]

    async def _move_to_clients(self) -> None:
        found = [
            (digest, readers)
            for digest in self.claims.unkept
            if (readers := self.claims.readers(digest)) is not None
        ]
        until = self._clock.now() + KEEP_SECONDS + self._hold_seconds
        for start in range(0, len(found), MOVES_MAX):
            batch = found[start : start + MOVES_MAX]
            moves = [
                PinTransfer(
                    digest, owner_name(item.provider) + UNCOMMITTED, self._payer(item.client), until
                )
                for digest, item in batch
            ]
            for lost in await self.outputs.transfer_pins(moves):
                log.error(
                    "output 0x%s was committed to and is not in the store: its execution may go "
                    "unpaid",
                    lost.hex(),
                )
            for digest, _ in batch:
                self.claims.unkept.pop(digest, None)

    def _payer(self, client: Address) -> Owner:
        return Owner(owner_name(client), None, _locked(self._state, client))

    async def _update_weights(self) -> None:
        for store, weight in (
            (self.uploads, self._unspent_of),
            (self.small, self._unspent_of),
            (self.outputs, self._locked_of),
        ):
            names = await store.owned()
            await store.set_weights(
                {name: found for name in names if (found := weight(name)) is not None}
            )

    def _unspent_of(self, name: str) -> int | None:
        """None for what the coordinator fetches for itself."""
        account = _account(name)
        if account is None:
            return None
        client = self._state.clients.get(account)
        return _unspent(client) if client is not None else 0

    def _locked_of(self, name: str) -> int | None:
        """None for what the coordinator fetches for itself, and for ciphertexts without a commit:
        they keep the weight of the clients that pay for them.
        """
        account = _account(name)
        return None if account is None else _locked(self._state, account)


def owner_name(account: Address) -> str:
    return "0x" + account.hex()


def _account(name: str) -> Address | None:
    """None for a name that `owner_name` did not give."""
    return Address(bytes.fromhex(name[2:])) if ACCOUNT_NAME.fullmatch(name) else None


def _unspent(client: Client) -> Amount:
    return Amount(max(0, client.tab.locked - client.charged))


def _locked(state: State, account: Address) -> int:
    client = state.clients.get(account)
    return client.tab.locked if client is not None else 0
