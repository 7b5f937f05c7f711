"""The sources that a job may name: `hf://org/model`, `https://host/file`, `s3://bucket/key`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from quorate.base.errors import UsageError
from quorate_protocol.messages.input_sources import fault_of

SCHEMES = ("hf://", "https://", "http://", "s3://")
HUB_HOME = "/inputs/hf"
HUB_CACHE = f"{HUB_HOME}/hub"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB = re.compile(rf"(datasets/)?({_PART}(?:/{_PART})?)(?:@([^/@]+))?(?:/(.*))?")
_BUCKET = re.compile(r"[a-z0-9A-Z][a-z0-9A-Z._-]{1,62}")
_SHA256 = re.compile(r"sha256=([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class HubName:
    """Files of a hub's repository: those below `path` that fit a pattern of `include`."""

    kind: str  # models or datasets
    repo: str
    revision: str = "main"
    path: str = ""
    include: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Returns the name of the repository's folder in the hub's cache."""
        return f"{self.kind}--{self.repo.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class S3Name:
    """An object, or all objects whose keys begin with `key` if that is empty or ends with `/`."""

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class WebName:
    """One file. `sha256` is its hash, or empty if the user did not say it."""

    url: str
    sha256: bytes = b""


def is_source(value: object) -> bool:
    return isinstance(value, str) and value.startswith(SCHEMES)


def parse_source(text: str, field: str) -> HubName | S3Name | WebName:
    """Raises UsageError that names the field and says how a source is written."""
    rest = text.partition("://")[2]
    if text.startswith("hf://"):
        name, _, query = rest.partition("?")
        found = _HUB.fullmatch(name.rstrip("/"))
        asked = parse_qs(query, strict_parsing=True) if "=" in query else {}
        if found is None or (query and asked.keys() != {"include"}):
            raise UsageError(
                f"{field}: {text[:120]!r}; write hf://org/model, hf://org/model@revision, "
                "hf://datasets/org/name, with /path or ?include=*.json,*.safetensors behind it"
            )
        include = tuple(item for text in asked.get("include", ()) for item in text.split(","))
        kind = "datasets" if found[1] else "models"
        return HubName(kind, found[2], unquote(found[3] or "main"), found[4] or "", include)
    if text.startswith("s3://"):
        bucket, _, key = rest.partition("/")
        if "?" in text or _BUCKET.fullmatch(bucket) is None:
            raise UsageError(
                f"{field}: {text[:120]!r}; write s3://bucket/key for one object, or "
                "s3://bucket/prefix/ for all below it"
            )
        return S3Name(bucket, key)
    url, _, fragment = text.partition("#")
    digest = _SHA256.fullmatch(fragment)
    if fragment and digest is None:
        raise UsageError(f"{field}: {text[:120]!r}; write the hash as #sha256= and 64 hex digits")
    fault = fault_of(url) or ("it must name one file, not a folder" if url.endswith("/") else "")
    if fault:
        raise UsageError(f"{field}: {url[:120]!r}: {fault}")
    return WebName(url, bytes.fromhex(digest[1]) if digest else b"")


def default_mount(text: str, field: str) -> str:
    """Returns the mount of a source that was given without one. A hub's repository comes into the
    hub's cache.
    """
    name = parse_source(text, field)
    if isinstance(name, HubName):
        return f"{HUB_HOME}/{name.folder}"
    path = name.key or name.bucket if isinstance(name, S3Name) else urlsplit(name.url).path
    last = unquote(path.rstrip("/").rpartition("/")[2])
    if not last:
        raise UsageError(f"{field}: {text[:120]!r} has no file name; give its mount")
    return f"/inputs/{last}"


def is_in_cache(mount: str) -> bool:
    """Returns whether a hub's repository at this mount is laid out as in the hub's cache."""
    return f"{mount}/".startswith(f"{HUB_HOME}/")


def hub_variables(inputs: Mapping[str, str | Path]) -> dict[str, str]:
    """Returns the variables with which `from_pretrained` finds what is in the hub's cache.

    `HF_HOME` itself stays writable: programs keep other caches below it.
    """
    for mount, value in inputs.items():
        if is_source(value) and str(value).startswith("hf://") and is_in_cache(mount):
            return {"HF_HUB_CACHE": HUB_CACHE, "HF_HUB_OFFLINE": "1"}
    return {}
