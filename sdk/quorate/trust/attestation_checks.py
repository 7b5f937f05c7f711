"""Opens what a check of attestations needs: a folder for documents, and queries to the chain."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.errors import UsageError
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate.trust.offer_verification import chain_keys
from quorate_protocol.units import UnixSeconds

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import AttestationCheck

STORE_BYTES_MAX = 1 << 30


@asynccontextmanager
async def attestation_check(
    identity: CoordinatorIdentity, now: UnixSeconds, chain_url: str = ""
) -> "AsyncIterator[AttestationCheck]":
    """Yields a check that keeps documents in a temporary folder. With a `chain_url` the chain says
    whose keys signed.

    Raises UsageError if numpy is not installed.
    """
    from quorate_content.store.content_store import ContentStore
    from quorate_content.transfer.document_fetch import document_fetch

    try:
        from quorate.trust.attestation_verification import AttestationCheck
    except ImportError as error:
        raise UsageError(
            f"checks of attestations need numpy ({error}): pip install 'quorate[attest]'"
        ) from error
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-attestation-"))
        store = ContentStore(Path(folder), STORE_BYTES_MAX)
        stack.push_async_callback(store.close)
        fetch = document_fetch(store, "attestation", identity.limits == "devnet")
        keys = None
        if chain_url:
            keys = await stack.enter_async_context(chain_keys(identity, chain_url))
        yield AttestationCheck(identity, now, fetch, keys)
