"""What a bucket of an S3-compatible store holds, read without a login and by path-style URLs.

Source: the S3 API's ListObjectsV2 and HeadObject.
"""

from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from quorate.base.errors import UsageError
from quorate.job.source_names import S3Name
from quorate.sources.found_files import FoundFile, FoundSource
from quorate.sources.reading import SourceReader
from quorate_content.dag.content_limits import BadSource
from quorate_protocol.limits import TREE_ENTRIES_MAX

PAGE_BYTES_MAX = 8 << 20
PARALLEL = 8
CHECKSUM = {"x-amz-checksum-mode": "ENABLED"}


def resolve_s3(reader: SourceReader, endpoint: str, name: S3Name, field: str) -> FoundSource:
    """Raises UsageError for a prefix without objects. An object without a checksum of all its bytes
    is read once here.
    """
    base, label = f"{endpoint}/{name.bucket}/", f"s3://{name.bucket}/{name.key}"
    is_folder = not name.key or name.key.endswith("/")

    def one(key: str) -> FoundFile:
        url = base + quote(key)
        found = reader.look(url, "HEAD", CHECKSUM)
        said = {head.lower(): value for head, value in found.headers.items()}
        checksum = said.get("x-amz-checksum-sha256", "")
        is_whole = said.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT"
        path = key.removeprefix(name.key) if is_folder else ""
        if is_whole and len(checksum) == 44 and found.size is not None:
            return FoundFile(path, found.size, b64decode(checksum))
        digest, size = reader.hashed(url, found, field)
        return FoundFile(path, size, digest)

    if not is_folder:
        file = one(name.key)
        pinned = f"sha256 {file.sha256.hex()[:12]}"
        return FoundSource(label, base + quote(name.key), (file,), pinned)
    keys = [key for key in _keys(reader, base, name.key) if not key.endswith("/")]
    if not keys:
        raise UsageError(f"{field}: {label} has no objects at {endpoint}")
    with ThreadPoolExecutor(PARALLEL) as threads:
        files = tuple(threads.map(one, keys))
    return FoundSource(label, base + quote(name.key), files, "sha256 of each object")


def _keys(reader: SourceReader, base: str, prefix: str) -> Iterator[str]:
    token, count = "", 0
    while True:
        query = f"list-type=2&encoding-type=url&prefix={quote(prefix, safe='')}"
        query += f"&continuation-token={quote(token, safe='')}" if token else ""
        page = _xml(reader.read(f"{base.rstrip('/')}?{query}", PAGE_BYTES_MAX))
        is_quoted = page.findtext("EncodingType") == "url"
        for item in page.iter("Key"):
            key, count = item.text or "", count + 1
            yield unquote_plus(key) if is_quoted else key
        if count > TREE_ENTRIES_MAX:
            raise BadSource(f"{base} lists more than {TREE_ENTRIES_MAX} objects; name a part")
        token = page.findtext("NextContinuationToken") or ""
        if page.findtext("IsTruncated") != "true" or not token:
            return


def _xml(data: bytes) -> ElementTree.Element:
    """Parses a page of keys. One with entities of its own could grow without bounds, and is
    refused.
    """
    try:
        text = data.decode()
        if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
            raise BadSource("the store's list has a document type, which no S3 store sends")
        page = ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeDecodeError, ValueError) as error:
        raise BadSource(f"the store's list is no XML: {error}") from error
    for item in page.iter():
        item.tag = item.tag.rpartition("}")[2]
    return page
