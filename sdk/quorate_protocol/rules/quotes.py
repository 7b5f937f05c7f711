"""How long an Accept may quote for fetching and storing (PROTOCOL §4, From Assignment to Commit).

The bounds follow from the bytes that the job declares, at a rate that every provider should reach.
"""

from quorate_protocol.limits import HOUR
from quorate_protocol.messages.job_spec import JobSpec, is_image_cid
from quorate_protocol.messages.signed import Accept
from quorate_protocol.refusals import Code, Refused

BYTES_PER_SECOND_LEAST = 1_000_000
SECONDS_LEAST = 60
SECONDS_MAX = HOUR
# Assumed size of an image of a registry, because nobody knows it before reading its manifest.
REGISTRY_IMAGE_BYTES = 2 << 30


def fetch_bytes(spec: JobSpec) -> int:
    """Bytes that a provider fetches before it starts the job: its image and its inputs."""
    image = spec.image_bytes if is_image_cid(spec.image) else REGISTRY_IMAGE_BYTES
    return sum(item.size_bytes for item in spec.inputs) + image


def fetch_seconds_max(spec: JobSpec) -> int:
    return _seconds_max(fetch_bytes(spec))


def store_seconds_max(spec: JobSpec) -> int:
    return _seconds_max(spec.resources.output_bytes)


def check(accept: Accept, spec: JobSpec) -> None:
    for name, quoted, most in (
        ("quotedFetchSeconds", accept.quoted_fetch_seconds, fetch_seconds_max(spec)),
        ("quotedStoreSeconds", accept.quoted_store_seconds, store_seconds_max(spec)),
    ):
        if quoted > most:
            raise Refused(
                Code.BAD_AMOUNT,
                f"accept: {name} is {quoted}, at most {most} for what this job declares; decline "
                "jobs that take longer here",
            )


def _seconds_max(size: int) -> int:
    return min(SECONDS_MAX, SECONDS_LEAST + size // BYTES_PER_SECOND_LEAST)
