"""Opens what a check of attestations needs: a folder for documents, and queries to the chain."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate.trust.offer_verification import chain_keys
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.document_fetch import document_fetch
from quorate_contracts.deploy import Deployment
from quorate_protocol.limits import BY_NAME
from quorate_protocol.units import UnixSeconds

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import AttestationCheck, Fetch
STORE_BYTES_MAX = 1 << 30


@asynccontextmanager
async def attestation_check(
    identity: CoordinatorIdentity, now: UnixSeconds, chain_url: str = ""
) -> "AsyncIterator[AttestationCheck]":
    """Yields a check with one coordinator's key, or with a `chain_url` by the chain's keys.

    Raises UsageError if numpy is not installed.
    """
    kind = _check_kind()
    async with AsyncExitStack() as stack:
        fetch = await _fetch(stack, identity.limits)
        own = (identity.coordinator, identity.statement_key)
        keys = (
            await stack.enter_async_context(chain_keys(identity.stakes, chain_url))
            if chain_url
            else own
        )
        yield kind(identity.domain, identity.constants, identity.beacon_key, now, fetch, keys)


@asynccontextmanager
async def deployment_check(
    deployment: Deployment, now: UnixSeconds, chain_url: str
) -> "AsyncIterator[AttestationCheck]":
    """Yields a check by the chain's keys alone. Raises UsageError if numpy is not installed."""
    kind = _check_kind()
    async with AsyncExitStack() as stack:
        fetch = await _fetch(stack, deployment.limits)
        keys = await stack.enter_async_context(chain_keys(deployment.stakes, chain_url))
        limits = BY_NAME[deployment.limits]
        yield kind(deployment.domain(), limits, deployment.beacon_key, now, fetch, keys)


def _check_kind() -> "type[AttestationCheck]":
    try:
        from quorate.trust.attestation_verification import AttestationCheck
    except ImportError as error:
        raise UsageError(
            f"checks of attestations need numpy ({error}): pip install 'quorate[attest]'"
        ) from error
    return AttestationCheck


async def _fetch(stack: AsyncExitStack, limits: str) -> "Fetch":
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-attestation-"))
    store = ContentStore(Path(folder), STORE_BYTES_MAX)
    stack.push_async_callback(store.close)
    return document_fetch(store, "attestation", limits == "devnet")
