"""The catalogue finds a model by the driver's name and by what people call it."""

from pathlib import Path

import pytest

from quorate_attestation.catalogue import (
    CPU,
    OTHER_ROWS,
    contradiction,
    model_by_id,
    model_of_driver_name,
    models,
    models_called,
    other_hardware,
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
        ("NVIDIA A10G", {"A10G"}),
        ("GH200", {"GH200", "GH200 144GB"}),
        ("DGX Spark", {"GB10"}),
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


@pytest.mark.parametrize(
    ("model", "capability", "sm_count", "is_possible"),
    [
        ("H100", "9.0", 114, True),  # people's name of three models
        ("RTX 3080 10GB", "8.6", 70, True),  # the driver calls one with 12 GB alike
        ("A100 SXM 80GB 1g.10gb", "8.0", 14, True),
        ("GeForce RTX 2080", "7.5", 46, True),  # not in the catalogue, unlike the Ti
        ("", "", 0, True),
        ("RTX A4500", "8.0", 56, False),  # an A30
        ("nvidia rtx4090", "8.6", 82, False),  # however it is written
        ("GB10", "12.0", 48, False),
    ],
)
def test_figures_of_another_gpu_contradict_a_name(
    model: str, capability: str, sm_count: int, is_possible: bool
) -> None:
    said = contradiction(model, capability, sm_count)
    assert (said == "") == is_possible
    assert is_possible or f"not {capability} with {sm_count}; leave it out" in said
    assert not any(contradiction(m.name, m.compute_capability, m.sm_count) for m in models())


def test_documents_name_all_models_and_what_runs_on_other_hardware() -> None:
    text = (Path(__file__).parents[3] / "docs" / "howto" / "owner.md").read_text()
    table = text.partition("### Which hardware")[2].partition("## Attestation")[0]
    names = {name.strip() for cell in table.split("|") for name in cell.split(",")}
    assert {model.name for model in models()} <= names
    for name, pci_ids, missing in OTHER_ROWS:
        assert name in names and missing in table
        assert all(other_hardware(each).startswith(f"{name}: nothing runs") for each in pci_ids)
    assert other_hardware("10de:2684") == ""
