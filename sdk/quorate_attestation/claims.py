"""What a provider claims of its machine: one claim a GPU or MIG partition, or one for its CPU."""

from collections.abc import Callable

from quorate_attestation.catalogue import CPU, Model, model_of_driver_name
from quorate_attestation.challenge import ChallengeOpened, GpuClaim, cpu_uuid
from quorate_attestation.measured_figures import model_of
from quorate_attestation.parameters import CPU_PARAMETERS, PAGE_BYTES, Parameters, parameters_for
from quorate_protocol.messages.gpu_inventory import GpuDevice, GpuInventory
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32


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
