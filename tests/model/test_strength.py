"""How strong GPUs are, by their names and by what they report."""

from __future__ import annotations

import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.model.strength import (
    GPU_MODELS,
    UNKNOWN,
    StrengthOverrides,
    Throughput,
    format_strength,
    parse_override,
    parse_strength,
    strength_of,
)


def test_models_are_known_by_the_names_that_drivers_give_them() -> None:
    assert strength_of("NVIDIA A100-SXM4-80GB") == pytest.approx(100)
    assert strength_of("NVIDIA A100-PCIE-40GB") == pytest.approx(100)
    assert strength_of("Tesla V100-SXM2-32GB") == strength_of("V100") > 0
    assert strength_of("H100 80GB HBM3") == strength_of("NVIDIA H100 PCIe")
    assert strength_of("NVIDIA GeForce RTX 4090") > strength_of("Tesla V100-SXM2-32GB")


@pytest.mark.parametrize("name", ["", "RTX 4070 Ti", "GeForce RTX 40", "A100X", "Voodoo 2"])
def test_other_models_are_unknown_and_not_like_those_of_a_similar_name(name: str) -> None:
    assert strength_of(name) == UNKNOWN


@pytest.mark.parametrize("text", ["", "0", "-3", "0.01", "nan", "inf", "1e7", "A100"])
def test_a_strength_is_a_positive_number(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_strength(text)
    assert repr(text) in caught.value.message
    assert "positive number" in str(caught.value.hint)


def test_a_strength_is_read_as_it_is_shown() -> None:
    for name in GPU_MODELS:
        assert parse_strength(format_strength(strength_of(name))) == strength_of(name)


# Cores, their clock in MHz, compute capability, bits of the memory bus, its clock in MHz.
DEVICES = {
    "H100": (16896, 1980, (9, 0), 5120, 2619),
    "A100": (6912, 1410, (8, 0), 5120, 1215),
    "V100": (5120, 1530, (7, 0), 4096, 877),
    "T4": (2560, 1590, (7, 5), 256, 5001),
    "RTX 4090": (16384, 2520, (8, 9), 384, 10501),
    "P40": (3840, 1531, (6, 1), 384, 3615),
    "B200": (18944, 1965, (10, 0), 8192, 3996),
}


@pytest.mark.parametrize("name", DEVICES)
def test_what_a_device_reports_agrees_with_its_data_sheet(name: str) -> None:
    """Within a quarter: data sheets name boost clocks that not every board reaches."""
    cores, clock, capability, bus, memory_clock = DEVICES[name]
    reported = Throughput.of_device(
        cores=cores, clock_mhz=clock, capability=capability, bus=bus, memory_mhz=memory_clock
    )
    assert reported.strength == pytest.approx(strength_of(name), rel=0.25)


def test_a_given_strength_comes_before_the_known_and_that_of_a_node_before_its_models() -> None:
    models = (parse_override("RTX 4070 Ti=70.5"),)
    by_model = StrengthOverrides(models=models)
    assert by_model.of("NVIDIA GeForce RTX 4070 Ti", 60.0) == 70.5
    assert by_model.of("NVIDIA GeForce RTX 4070", 56.6) == 56.6
    assert StrengthOverrides(50.0, models).of("NVIDIA GeForce RTX 4070 Ti", 60.0) == 50.0


@pytest.mark.parametrize("text", ["T4=0", "T4=-1", "T4=", "T4=fast", "T4=nan", "=5", "5"])
def test_a_given_strength_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_override(text)
    assert ("T4: " in caught.value.message) == text.startswith("T4")
    assert "NUMBER" in str(caught.value.hint) or "positive number" in str(caught.value.hint)
