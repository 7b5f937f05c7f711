"""The catalogue finds a model by the driver's name and by what people call it."""

import pytest

from quorate_attestation.catalogue import (
    CPU,
    model_by_id,
    model_of_driver_name,
    models,
    models_called,
)
from quorate_protocol.messages.classes import Pool
from quorate_protocol.units import Small
from support.gpu.recorded_inventories import NAMES, recorded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H100", {"H100 SXM", "H100 NVL", "H100 PCIe"}),
        ("h100 pcie", {"H100 PCIe"}),
        ("H100-SXM", {"H100 SXM"}),
        ("NVIDIA H100 80GB HBM3", {"H100 SXM"}),
        ("4090", {"RTX 4090"}),
        ("RTX4090", {"RTX 4090"}),
        ("RTX 4090 D", {"RTX 4090 D"}),
        ("A100", {"A100 SXM 80GB", "A100 PCIe 80GB", "A100 SXM 40GB", "A100 PCIe 40GB"}),
        ("A100 40GB", {"A100 SXM 40GB", "A100 PCIe 40GB"}),
        ("L40", {"L40"}),
        ("L40S", {"L40S"}),
        ("A10", {"A10"}),
        ("T4", {"T4"}),
        ("H200", {"H200 SXM", "H200 NVL"}),
        ("RTX 6000", {"RTX 6000 Ada", "Quadro RTX 6000", "RTX PRO 6000 Blackwell"}),
        ("Voodoo 2", set()),
        ("nvidia", set()),
        ("", set()),
    ],
)
def test_a_name_finds_its_models(text: str, expected: set[str]) -> None:
    assert {model.name for model in models_called(text)} == expected


@pytest.mark.parametrize("name", NAMES)
def test_recorded_devices_are_in_the_catalogue_with_their_figures(name: str) -> None:
    for device in recorded(name).devices:
        model = model_of_driver_name(device.model)
        assert model is not None, device.model
        assert model.sm_count == device.sm_count
        assert model.compute_capability == device.compute_capability
        assert 0.92 <= device.vram_bytes / model.vram_bytes <= 1.0


def test_rows_are_whole_and_names_are_unique() -> None:
    assert len(models()) >= 25
    names = [model.name for model in models()]
    assert len(set(names)) == len(names)
    for model in models():
        Pool(model.name, "", Small(1)).validate()
        assert model.measured is None, "nobody has measured it"
        for driver_name in model.driver_names:
            assert model_of_driver_name(f"NVIDIA {driver_name}") == model
            assert model in models_called(driver_name)


def test_a_record_names_its_model_by_a_hash() -> None:
    assert all(model_by_id(model.id()) == model for model in (*models(), CPU))
    assert len({model.id() for model in (*models(), CPU)}) == len(models()) + 1
