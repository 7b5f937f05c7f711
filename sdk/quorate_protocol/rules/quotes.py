"""How long an Accept may quote for fetching and storing (PROTOCOL §4, From Assignment to Commit).

Fetching is bounded by the bytes that the job declares, over the bandwidth that the provider's offer
names, and by what the client allows. Storing is bounded at a rate that every provider should reach.
"""

from quorate_protocol.limits import HOUR
from quorate_protocol.messages.job_spec import START_WITHIN_DEFAULT, JobSpec, is_image_cid
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT
from quorate_protocol.messages.signed import Accept
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Seconds

STORED_PER_SECOND_LEAST = 1_000_000
SECONDS_LEAST = 60
FETCH_SECONDS_MAX = 6 * HOUR
STORE_SECONDS_MAX = HOUR
# Assumed size of an image of a registry, because nobody knows it before reading its manifest.
REGISTRY_IMAGE_BYTES = 2 << 30


def fetch_bytes(spec: JobSpec) -> int:
    """Bytes that a provider fetches before it starts the job: its image and its inputs."""
    image = spec.image_bytes if is_image_cid(spec.image) else REGISTRY_IMAGE_BYTES
    return sum(item.size_bytes for item in spec.inputs) + image


def fetch_seconds(size: int, bandwidth: int) -> Seconds:
    """How long a fetch is expected to take, rounded up."""
    return Seconds(-(-size // max(1, bandwidth)))


def start_within_seconds(spec: JobSpec) -> Seconds:
    """The longest fetch that its client waits for."""
    return Seconds(min(FETCH_SECONDS_MAX, spec.start_within))


def bandwidth_least(spec: JobSpec) -> int:
    """Bytes a second of the slowest offer that the job fits."""
    return -(-fetch_bytes(spec) // start_within_seconds(spec))


def fetch_seconds_max(spec: JobSpec, bandwidth: int) -> Seconds:
    return min(start_within_seconds(spec), _twice(fetch_bytes(spec), bandwidth))


def start_within_default(size: int) -> Seconds:
    """What a client allows if it names nothing: twice what an offer without a measured bandwidth
    needs, and no less than ten minutes.
    """
    return max(START_WITHIN_DEFAULT, _twice(size, BANDWIDTH_DEFAULT))


def store_seconds_max(spec: JobSpec) -> Seconds:
    seconds = SECONDS_LEAST + spec.resources.output_bytes // STORED_PER_SECOND_LEAST
    return Seconds(min(STORE_SECONDS_MAX, seconds))


def check(accept: Accept, spec: JobSpec, bandwidth: int) -> None:
    """`bandwidth` is that of the provider's newest offer."""
    for name, quoted, most in (
        ("quotedFetchSeconds", accept.quoted_fetch_seconds, fetch_seconds_max(spec, bandwidth)),
        ("quotedStoreSeconds", accept.quoted_store_seconds, store_seconds_max(spec)),
    ):
        if quoted > most:
            raise Refused(
                Code.BAD_AMOUNT,
                f"accept: {name} is {quoted}, at most {most} for what this job declares; decline "
                "jobs that take longer here",
            )


def _twice(size: int, bandwidth: int) -> Seconds:
    return Seconds(SECONDS_LEAST + 2 * fetch_seconds(size, bandwidth))
