"""What a provider claims of its GPUs, or of its CPU, and whether a verifier's figures fit that.

The times are the verifier's own. Nobody can check them again; the median of the verifiers counts.
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_attestation.catalogue import CPU, Model, model_by_id, model_of_driver_name
from quorate_attestation.challenge import (
    PAGES_AGAIN,
    PRODUCTS,
    STAGES,
    ChallengeOpened,
    GpuClaim,
    cpu_uuid,
)
from quorate_attestation.parameters import CPU_PARAMETERS, PAGE_BYTES, Parameters, parameters_for
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.gpu_inventory import GpuDevice, GpuInventory
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import PPM_ONE, Hash32, Milliseconds, Ppm

COMPUTE_MIN = Ppm(800_000)  # of the catalogue's measured figure
MEMORY_MIN = Ppm(850_000)
RATIO_MAX = Ppm(1_100_000)  # above it, something larger than the claimed model answered
VRAM_MIN = Ppm(920_000)  # of the datasheet for the claim, and of the claim for the pages
ROUND_TRIPS_MIN = 20  # a stage must last so many round trips, so that the network hides nothing
_MS = 1000
_MIG_PREFIX = "MIG-"


class Figures(Struct, frozen=True):
    """Rates and sizes of one GPU, by one verifier's clock."""

    stage_ms: tuple[Milliseconds, ...]  # from the verifier's nonce to the GPU's roots
    int8_operations_per_second: int
    memory_bytes_per_second: int
    vram_bytes: int  # covered by pages

    @property
    def elapsed_ms(self) -> Milliseconds:
        return Milliseconds(sum(self.stage_ms))


def figures(claim: GpuClaim, stage_ms: tuple[Milliseconds, ...]) -> Figures:
    assert len(stage_ms) == STAGES, "one time a stage"
    parameters = claim.parameters
    return Figures(
        stage_ms,
        parameters.int8_operations * _MS // max(1, stage_ms[PRODUCTS]),
        parameters.pass_bytes * _MS // max(1, stage_ms[PAGES_AGAIN]),
        parameters.pages * PAGE_BYTES,
    )


def judge(claim: GpuClaim, found: Figures, model: Model, round_trip_ms: Milliseconds) -> Ppm:
    """Returns the compute rate by the catalogue's, in ppm; 0 if it has none. Raises
    `Refused(BAD_AMOUNT)` for what does not fit the model, `Refused(TOO_EARLY)` if the network's
    delay could hide what is measured.
    """
    _judge_memory(claim, found, model)
    if model.measured is None or claim.uuid.startswith(_MIG_PREFIX):
        return Ppm(0)
    _judge_delay(found, round_trip_ms)
    ratio = _share(found.int8_operations_per_second, model.measured.int8_ops_per_second)
    memory = _share(found.memory_bytes_per_second, model.measured.memory_bytes_per_second)
    for name, share, least in (("int8", ratio, COMPUTE_MIN), ("memory", memory, MEMORY_MIN)):
        if not least <= share <= RATIO_MAX:
            raise Refused(
                Code.BAD_AMOUNT,
                f"attestation: {claim.uuid}: {name} rate is {share / PPM_ONE:.2f} of a "
                f"{model.name}'s; {least / PPM_ONE:.2f} to {RATIO_MAX / PPM_ONE:.2f} fits",
            )
    return ratio


def _judge_memory(claim: GpuClaim, found: Figures, model: Model) -> None:
    is_whole_gpu = model.vram_bytes > 0 and not claim.uuid.startswith(_MIG_PREFIX)
    datasheet = model.vram_bytes if is_whole_gpu else 0
    if _share(claim.vram_bytes, datasheet) < VRAM_MIN:
        raise Refused(
            Code.BAD_AMOUNT,
            f"attestation: {claim.uuid}: {claim.vram_bytes} bytes of memory are less than a "
            f"{model.name} has ({datasheet})",
        )
    if is_whole_gpu and _share(found.vram_bytes, claim.vram_bytes) < VRAM_MIN:
        raise Refused(
            Code.BAD_AMOUNT,
            f"attestation: {claim.uuid}: pages cover {found.vram_bytes} bytes of "
            f"{claim.vram_bytes}",
        )


def _judge_delay(found: Figures, round_trip_ms: Milliseconds) -> None:
    shortest = min(found.stage_ms[PRODUCTS], found.stage_ms[PAGES_AGAIN])
    if shortest < ROUND_TRIPS_MIN * round_trip_ms:
        raise Refused(
            Code.TOO_EARLY,
            f"attestation: a stage took {shortest} ms, less than {ROUND_TRIPS_MIN} round trips of "
            f"{round_trip_ms} ms; choose more rounds or chains",
        )


def _share(value: int, whole: int) -> Ppm:
    """value / whole in ppm, rounded down; 1 if there is no whole to compare with."""
    return Ppm(value * PPM_ONE // whole if whole else PPM_ONE)


def model_of(claim: GpuClaim) -> Model:
    found = model_by_id(hash_tuple("gpu-model", claim.model))
    assert found is not None, "a valid challenge names models of the catalogue"
    return found


def claims_of(inventory: GpuInventory, peer_key: Hash32) -> tuple[GpuClaim, ...]:
    """A machine without a known GPU claims its CPU as "cpu", never as a GPU."""
    found = tuple(claim for device in inventory.devices for claim in _claims(device))
    return found or (cpu_claim(peer_key),)


def cpu_claim(peer_key: Hash32) -> GpuClaim:
    memory = CPU_PARAMETERS.pages * PAGE_BYTES
    return GpuClaim(cpu_uuid(peer_key), CPU.name, memory, CPU_PARAMETERS)


def standard_sizes(claim: GpuClaim) -> Parameters:
    """The claim's model must be known."""
    return parameters_for(model_of(claim), claim.vram_bytes)


def check_sizes(
    challenge: ChallengeOpened, standard: Callable[[GpuClaim], Parameters] = standard_sizes
) -> None:
    """Called before taking part: smaller sizes prove less. Raises `Refused(BAD_AMOUNT)`."""
    for claim in challenge.gpus:
        if claim.parameters != standard(claim):
            raise Refused(
                Code.BAD_AMOUNT,
                f"challenge: gpus: {claim.uuid}: parameters are not the standard ones of a "
                f"{claim.model} with this memory",
            )


def _claims(device: GpuDevice) -> tuple[GpuClaim, ...]:
    model = model_of_driver_name(device.model)
    if model is None:
        return ()
    if device.is_mig_enabled:
        return tuple(_claim(part.uuid, model, part.vram_bytes) for part in device.partitions)
    return (_claim(device.uuid, model, device.vram_bytes),)


def _claim(uuid: str, model: Model, vram_bytes: int) -> GpuClaim:
    return GpuClaim(uuid, model.name, vram_bytes, parameters_for(model, vram_bytes))
