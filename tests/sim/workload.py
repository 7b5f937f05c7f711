"""Simulated jobs and their true results, which cores never see and checks compare with."""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_TIMEOUT,
    Comparator,
    ExitStatus,
    Hash32,
    JobKind,
    Ppm,
    Seconds,
)
from quorate_protocol.values import replace
from support.offers import MACHINE

NOISE: dict[Hash32, tuple[Hash32, int]] = {}  # noisy output -> what it would be, its place in ppb
EMPTY = sha256(b"the empty directory")
STOPPED = ExitStatus(256 + 15)
IMAGE = document_cid(b"image")
COIN = "coin"  # the kind of a program that tosses a coin; it has an image of its own
COIN_IMAGE = document_cid(b"an image that tosses coins")
EMPTY_GATEWAY = "http://192.0.2.1"  # says that it has nothing
HEAD_GATEWAY = "http://192.0.2.2"  # says that it has all, and sends nothing
ONE_GATEWAY = "http://192.0.2.3"  # says so too, and sends to the first owner only
SOME_GATEWAY = "http://192.0.2.4"  # sends to the coordinator and the first owner only
SERVED = {
    ONE_GATEWAY: frozenset({"provider-0"}),
    SOME_GATEWAY: frozenset({"coordinator", "provider-0"}),
}
DEAD_IMAGE = "alpine@sha256:" + "0" * 64  # its registry says that it has it, and sends nothing
STORE_ROOM = 1 << 30  # bytes that an owner's store keeps, where somebody means harm
NO_ENGINE = "bait: no engine"  # the party in whose market owners have no container engine
GPUS = job_spec.GpuRequest(2, "L40S", 0)
KINDS = (*["pure"] * 5, "fails", "times-out", "memory", "random", "by-class")


@dataclass(frozen=True, slots=True)
class Ran:
    """What one execution returns if it is not stopped."""

    status: ExitStatus
    output: Hash32
    milliseconds: int

    def result(self) -> Hash32:
        """The result digest."""
        return result_digest(self.status, self.output)


def make_spec(
    random: Random, name: str, is_long: bool = False, has_gpus: bool = False, is_large: bool = False
) -> job_spec.JobSpec:
    """A small job; its argv says what it does. A long one may run for minutes, but does not."""
    kind, duration = random.choice(KINDS), random.randint(4, 12)
    milliseconds = random.randint(200, 3_000)
    if kind == "random":
        milliseconds = random.randint(duration * 300, duration * 1000)
    if is_long and kind != "times-out":
        duration += 240
    argv = ("run", kind, str(milliseconds), name)
    resources = job_spec.Resources(gpu=GPUS if has_gpus else None)
    return job_spec.JobSpec(
        JobKind.TASK,
        IMAGE,
        10_500_000_000 if is_large else 10,
        argv,
        "",
        (),
        "/scratch",
        (),
        resources,
        Seconds(duration),
        job_spec.Compare(),
    )


def make_rental(random: Random, name: str, has_gpus: bool) -> job_spec.JobSpec:
    """A machine whose program ends by itself after some time, or runs to its limit."""
    spec, milliseconds = make_spec(random, name, has_gpus=has_gpus), random.randint(5, 120) * 1000
    return replace(
        spec,
        kind=JobKind.DEV_ENVIRONMENT,
        argv=("run", "pure", str(milliseconds), name),
        max_duration=Seconds(random.randint(10, 90)),
    )


def paid_seconds(spec: job_spec.JobSpec) -> Seconds:
    """The longest time that an execution is paid for: with 10 ms for each MB beyond 10 GB."""
    large = spec.image_bytes + sum(item.size_bytes for item in spec.inputs) - 10_000_000_000
    return Seconds(spec.max_duration + max(0, large) // 100_000_000)


def can_fetch(spec: job_spec.JobSpec, who: str) -> bool:
    """Whether the sources that a job names send its content. Without a gateway it was uploaded."""
    if spec.image == DEAD_IMAGE:
        return False
    return not spec.gateways or any(who in SERVED.get(url, ()) for url in spec.gateways)


def kind_of(spec: job_spec.JobSpec) -> str:
    """pure, fails, times-out, memory, random or coin."""
    return spec.argv[1]


@lru_cache(maxsize=4096)
def truth(spec: job_spec.JobSpec, who: str, host: Host = MACHINE) -> Ran:
    """What an honest execution returns. A `random` program depends on who runs it, one `by-class`
    on the machine.
    """
    kind, milliseconds = kind_of(spec), int(spec.argv[2])
    seen = sha256(b"output" + spec.encode())
    match kind:
        case "pure":
            return Ran(ExitStatus(0), seen, milliseconds)
        case "by-class":
            return Ran(ExitStatus(0), sha256(seen + str(host).encode()), milliseconds)
        case "fails":
            return Ran(ExitStatus(3), seen, milliseconds)
        case "times-out":
            return Ran(EXIT_TIMEOUT, EMPTY, int(spec.max_duration) * 1000)
        case "memory":
            return Ran(EXIT_MEMORY_KILL, EMPTY, milliseconds)
        case "frames":  # it knows the first owner's machine
            victim = b"frame" if who == "provider-0" else b""
            return Ran(ExitStatus(0), sha256(seen + victim), milliseconds)
        case "noisy":
            output = sha256(seen + who.encode())
            NOISE[output] = seen, output[0] * 3_000
            return Ran(ExitStatus(0), output, milliseconds)
        case "unstorable":  # its lines can be read, and what it wrote is refused
            return Ran(ExitStatus(0), EMPTY, milliseconds)
        case _:
            return Ran(ExitStatus(0), sha256(seen + who.encode()), milliseconds)


def with_noise(spec: job_spec.JobSpec) -> job_spec.JobSpec:
    """The same job with a program whose numbers differ by less than the tolerance."""
    argv, compare = (spec.argv[0], "noisy", *spec.argv[2:]), job_spec.Compare(Comparator.NUMERIC)
    return replace(spec, argv=argv, compare=replace(compare, tolerance_ppm=Ppm(1_000)))


def plain(output: Hash32) -> Hash32:
    """An output without its noise."""
    return NOISE.get(output, (output, 0))[0]


def apart(one: Hash32, other: Hash32) -> int | None:
    """As the shell compares two outputs: lies are beyond any tolerance."""
    if plain(one) != plain(other):
        return None
    return abs(NOISE[one][1] - NOISE[other][1])


def toss_coins(spec: job_spec.JobSpec) -> job_spec.JobSpec:
    """The same job with a program that tosses a coin."""
    argv = (spec.argv[0], COIN, *spec.argv[2:])
    return replace(spec, image=COIN_IMAGE, argv=argv)


def toss(spec: job_spec.JobSpec, lease: Hash32) -> Hash32:
    """The output of one execution of such a program: one of two."""
    return sha256(b"output" + spec.encode() + bytes([sha256(lease)[0] & 1]))


def lie(spec: job_spec.JobSpec, who: str) -> Hash32:
    """An invented output."""
    return sha256(b"lie" + who.encode() + spec.encode())
