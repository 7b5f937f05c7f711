"""A machine claims the GPUs that it reports, or its CPU under its true name."""

import pytest

from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.challenge import GpuClaim
from quorate_attestation.claims import check_sizes, claims_of, cpu_claim, figures, judge, model_of
from quorate_attestation.provers.cuda_device import engine_of
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Milliseconds
from quorate_protocol.values import replace
from support.attestation.challenges import DOMAIN, PEER_KEY, challenge, nonce, prove
from support.attestation.scene import NETWORK_MS, Scene, claims, open_challenge
from support.gpu.recorded_inventories import FakeLibraryProbe, recorded


def challenge_of(found: tuple[GpuClaim, ...]) -> None:
    opened = replace(challenge(), gpus=found)
    opened.validate()
    check_sizes(opened)


@pytest.mark.parametrize(
    ("name", "models", "uuids"),
    [
        ("eight-h100-sxm", {"H100 SXM"}, "GPU-"),
        ("four-rtx-4090", {"RTX 4090"}, "GPU-"),
        ("one-t4", {"T4"}, "GPU-"),
    ],
)
def test_each_gpu_is_claimed_with_nearly_all_its_memory(
    name: str, models: set[str], uuids: str
) -> None:
    inventory = recorded(name)
    found = claims_of(inventory, PEER_KEY)
    challenge_of(found)
    assert len(found) == len(inventory.devices)
    assert {claim.model for claim in found} == models
    for claim in found:
        assert claim.uuid.startswith(uuids)
        times = (Milliseconds(9000), Milliseconds(9000), Milliseconds(9000))
        judge(claim, figures(claim, times), model_of(claim), NETWORK_MS)


def test_partitions_are_claimed_in_the_place_of_their_gpu() -> None:
    found = claims_of(recorded("a100-mig"), PEER_KEY)
    challenge_of(found)
    assert [claim.uuid[:4] for claim in found] == ["MIG-", "MIG-", "GPU-"]


@pytest.mark.rule("10.18")
def test_a_machine_without_gpus_is_attested_as_a_cpu() -> None:
    (claim,) = claims_of(GpuInventory(), PEER_KEY)
    challenge_of((claim,))
    assert claim.model == "cpu" and claim != cpu_claim(nonce(1))
    assert isinstance(engine_of(claim), NumpyEngine)
    opened = replace(challenge(), gpus=(claim,))
    check(prove(opened), DOMAIN, SecretKeeper(b"\x01" * 32))


@pytest.mark.rule("10.11")
def test_smaller_sizes_than_the_standard_are_refused() -> None:
    (claim,) = claims_of(recorded("one-t4"), PEER_KEY)
    for change in ({"tiles": 1}, {"order": 256}, {"page_rounds": 1}, {"chains_opened": 1}):
        weak = replace(claim, parameters=replace(claim.parameters, **change))
        with pytest.raises(Refused, match="not the standard ones"):
            check_sizes(replace(challenge(), gpus=(weak,)))


@pytest.mark.rule("10.18")
def test_a_gpu_that_is_not_there_is_never_answered_for_by_the_cpu() -> None:
    (claim,) = claims_of(recorded("one-t4"), PEER_KEY)
    with pytest.raises(Unavailable):
        engine_of(claim)


@pytest.mark.cc
@pytest.mark.rule("10.1")
def test_a_forged_driver_library_fools_level_0_and_not_level_1(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    forged = FakeLibraryProbe(recorded("eight-h100-sxm"), tmp_path_factory.mktemp("nvml"))
    assert len(claims_of(forged.inventory(), PEER_KEY)) == 8, "level 0 believes the library"
    slow = Scene(open_challenge(claims(2)), slowness=lambda _gpu, _stage: 20.0)
    slow.run()
    with pytest.raises(Refused, match="int8 rate is 0.05"):
        slow.record(0, 0)
