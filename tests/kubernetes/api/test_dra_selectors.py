"""Selectors of devices: what they mean, and that all else is refused."""

from __future__ import annotations

import pytest

from aliquot.kubernetes.api.dra_devices import Version
from aliquot.kubernetes.api.dra_selectors import Device, UnknownExpressionError, fulfils

GIB = 1 << 30
GPU = Device(
    (
        ("kind", "sliced"),
        ("model", "H100 80GB HBM3"),
        ("strength", 286),
        ("numa", 1),
        ("driverVersion", Version("580.159.4")),
    ),
    (("memory", 80 * GIB), ("compute", 100)),
)
OURS = 'device.attributes["aliquot.io"]'
MEMORY = 'device.capacity["aliquot.io"].memory'


@pytest.mark.parametrize(
    "expression",
    [
        f'device.driver == "aliquot.io" && {OURS}.kind == "sliced"',
        f"{OURS}.strength >= 100",
        f"{OURS}.strength > 100 && {OURS}.strength < 300",
        f"({OURS}.numa == 0 || {OURS}.numa == 1) && !({OURS}.kind == 'whole')",
        f'{OURS}["model"].startsWith("H100")',
        f'{OURS}.model.contains("80GB") && {OURS}.model.endsWith("HBM3")',
        f'{OURS}.model in ["A100", "H100 80GB HBM3"]',
        f'{MEMORY}.isGreaterThan(quantity("40Gi"))',
        f'{MEMORY}.compareTo(quantity("80Gi")) == 0',
        f'{MEMORY}.isLessThan(quantity("1Ti")) && {OURS}.numa != -1',
        "true || false",
        f"{OURS}.nothing == 0 || {OURS}.strength >= 100",
        f"!({OURS}.nothing == 0 && {OURS}.strength < 100)",
    ],
)
def test_a_selector_that_a_device_fulfils(expression: str) -> None:
    assert fulfils(GPU, expression)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.nvidia.com"',
        f'{OURS}.kind == "whole"',
        f"{OURS}.strength < 100",
        f"{OURS}.nothing == 1",
        f"!({OURS}.nothing == 1)",
        f"{OURS}.nothing == 0 || {OURS}.strength < 100",
        f"!({OURS}.nothing == 0 || {OURS}.strength >= 100)",
        f"{OURS}.nothing == 0 && {OURS}.strength >= 100",
        f'{OURS}.strength == "286"',
        f'{OURS}.driverVersion == "580.159.4"',
        'device.attributes["other.example.com"].kind == "sliced"',
        f"{OURS}.strength",
        f"{OURS}.model && true",
        f'{OURS}.strength.startsWith("2")',
    ],
)
def test_a_device_that_lacks_or_differs_in_what_is_asked_does_not_fit(expression: str) -> None:
    assert not fulfils(GPU, expression)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true ? true : false",
        f'{OURS}.model.matches("H.*")',
        f'{OURS}.driverVersion.compareTo(semver("1.0.0")) > 0 ',
        f'{OURS}.all(key, key == "kind")',
        f"{OURS}.strength + 1 > 3",
        f"{OURS}.kind == ",
        "device.allowMultipleAllocations",
        f'{OURS}.kind == "a\\"b"',
        f"{OURS}.kind == 'sliced' true",
        "(" * 200 + "true" + ")" * 200,
        "!" * 200 + "true",
        "true" + " " * 20_000 + "&& true",
        "1 & 2",
        f"{OURS}.strength < {'9' * 5000}",
        " || ".join(["true"] * 300),
        "\x00",
    ],
)
def test_what_is_not_understood_is_refused_and_named(expression: str) -> None:
    with pytest.raises(UnknownExpressionError, match="does not understand"):
        fulfils(GPU, expression)
