"""Resolves the sources of a job, once for a minute."""

import http.client
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import UnavailableError, UsageError
from quorate.job.job import Job
from quorate.job.packing import SourcedInput
from quorate.job.source_names import HubName, S3Name, WebName, is_source, parse_source
from quorate.sources.found_files import FoundFile, FoundSource, sourced_input
from quorate.sources.hub import resolve_hub
from quorate.sources.object_store import resolve_s3
from quorate.sources.reading import HashFile, SourceReader
from quorate_content.store.threads import in_thread
from quorate_protocol.messages.rental_secrets import RentalSecrets
from quorate_protocol.refusals import Refused, Unavailable

KNOWN_SECONDS = 60.0
KNOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base URLs of the hub and of the S3 store; a job may name another store."""

    hub: str = "https://huggingface.co"
    s3: str = "https://s3.amazonaws.com"

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Endpoints":
        """Takes HF_ENDPOINT and AWS_ENDPOINT_URL, as their own programs do."""
        s3 = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        return cls(environment.get("HF_ENDPOINT") or cls().hub, s3 or cls().s3)


class SourceResolver:
    """Resolves sources for one Market. Hashes are remembered in `home`, documents of folders are
    written below `staging()`. `may_be_private`: providers reach private addresses too, on a devnet.
    """

    def __init__(
        self,
        home: Path,
        endpoints: Endpoints,
        staging: Callable[[], Path],
        notice: Callable[[str], None],
        may_be_private: bool,
    ) -> None:
        self._hashes = HashFile(home / "source-hashes.json")
        self._endpoints, self._staging, self._notice = endpoints, staging, notice
        self._may_be_private = may_be_private
        self._known: dict[tuple[str, str], tuple[float, FoundSource]] = {}

    async def resolve(self, job: Job) -> dict[str, SourcedInput]:
        """Returns what each mount with a source becomes.

        Raises UsageError for a source that providers could not read, UnavailableError if it does
        not answer.
        """
        found, secrets = {}, RentalSecrets() if job.secrets is None else job.secrets.document
        for mount, value in job.inputs.items():
            if is_source(value):
                reader = SourceReader(
                    self._hashes, self._notice, self._may_be_private, secrets.headers_for
                )
                with ThreadPoolExecutor(1) as thread:
                    found[mount] = await in_thread(
                        thread,
                        lambda: self._one(reader, str(value), mount, job.s3_endpoint),  # noqa: B023
                        reader.stop,
                    )
        return found

    def _one(self, reader: SourceReader, text: str, mount: str, s3: str) -> SourcedInput:
        field = f"inputs.{mount}"
        name, at = parse_source(text, field), time.monotonic()
        known_at, found = self._known.get((text, s3), (0.0, None))
        if found is None or at - known_at > KNOWN_SECONDS:
            try:
                found = self._resolve(reader, name, field, s3)
            except Refused as refused:
                raise UsageError(f"{field}: {text}: {refused.detail}") from refused
            except (Unavailable, OSError, http.client.HTTPException) as error:
                raise UnavailableError(f"{field}: {text}: {error}") from error
            self._known = dict([*self._known.items()][-KNOWN_MAX:])
            self._known[text, s3] = at, found
        return sourced_input(found, name, mount, self._staging())

    def _resolve(
        self, reader: SourceReader, name: HubName | S3Name | WebName, field: str, s3: str
    ) -> FoundSource:
        match name:
            case HubName():
                return resolve_hub(reader, self._endpoints.hub.rstrip("/"), name, field)
            case S3Name():
                return resolve_s3(reader, (s3 or self._endpoints.s3).rstrip("/"), name, field)
            case WebName():
                return _resolve_web(reader, name, field)


def _resolve_web(reader: SourceReader, name: WebName, field: str) -> FoundSource:
    found = reader.look(name.url)
    if name.sha256 and found.size is not None:
        digest, size = name.sha256, found.size
    else:
        digest, size = reader.hashed(name.url, found, field)
        if name.sha256 and digest != name.sha256:
            raise UsageError(
                f"{field}: {name.url} has the SHA-256 {digest.hex()}, not the given one"
            )
    file = FoundFile("", size, digest)
    return FoundSource(name.url, name.url, (file,), f"sha256 {digest.hex()[:12]}")
