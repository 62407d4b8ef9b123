"""How strong a GPU is: one number by which models are ordered.

It is the geometric mean of three things that work may wait for: FP32, tensor cores and memory
bandwidth. An A100 has 100, a T4 about 26 and an H200 about 320. The figures of well-known models
are in `GPU_MODELS`; those of others follow from what the device reports.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from aliquot.model.errors import InvalidValueError

UNKNOWN = 0.0
STRONGEST = 1e6  # more than any GPU will have
_REFERENCE = "A100"
# Makers, brands, sizes and forms, as drivers write them into names.
_DECORATION = re.compile(
    r"\b(NVIDIA|Tesla|GeForce|\d+GB|SXM\d?|PCIE|HBM\w*|NVL|FHHL)\b|-", re.IGNORECASE
)
# NVIDIA H100 80GB HBM3 MIG 3g.40gb, or 1c.3g.40gb if it has one of three compute slices.
_INSTANCE = re.compile(r"(?P<model>.*) MIG (?:(?P<c>\d)c\.)?(?P<g>\d)g\.\d+gb\S*", re.ASCII)
_COMPUTE_SLICES = 7
# How many times more the tensor cores do with FP16 than the other cores do with FP32, by compute
# capability: the newest one that is not newer than the GPU.
_TENSOR = {
    (0, 0): 1,
    (6, 0): 2,
    (6, 1): 1,
    (7, 0): 8,
    (8, 0): 16,
    (8, 6): 4,
    (9, 0): 15,
    (12, 0): 4,
}


@dataclass(frozen=True, slots=True)
class Throughput:
    """TFLOPS of FP32 and of the tensor cores with FP16, and GB/s of memory."""

    fp32: float
    tensor: float
    bandwidth: float

    @classmethod
    def of_device(
        cls, *, cores: int, clock_mhz: int, capability: tuple[int, int], bus: int, memory_mhz: int
    ) -> Throughput:
        """What a device can do by what it reports; `bus` is in bits."""
        fp32 = 2 * cores * clock_mhz / 1e6
        newest = max(one for one in _TENSOR if one <= capability)
        return cls(fp32, fp32 * _TENSOR[newest], 2 * memory_mhz * bus / 8 / 1000)

    @property
    def strength(self) -> float:
        """100 for an A100, to one decimal: people compare what they see."""
        reference = GPU_MODELS[_REFERENCE]
        ratios = (
            self.fp32 / reference.fp32,
            self.tensor / reference.tensor,
            self.bandwidth / reference.bandwidth,
        )
        return round(float(100 * math.prod(ratios) ** (1 / 3)), 1)


def strength_of(model: str) -> float:
    """The strength of a well-known model by the name that its driver reports; UNKNOWN of others.

    An instance of a GPU (MIG) has that of its seventh parts, which are in its name.
    """
    instance = _INSTANCE.fullmatch(model)
    if instance is not None:
        whole = strength_of(instance["model"])
        return round(whole * int(instance["c"] or instance["g"]) / _COMPUTE_SLICES, 1)
    known = _BY_NAME.get(_plain_name(model))
    return known.strength if known else UNKNOWN


@dataclass(frozen=True, slots=True)
class StrengthOverrides:
    """Strengths that people give instead: `own` for all GPUs of a machine, else by model."""

    own: float | None = None
    models: tuple[tuple[str, float], ...] = ()

    def of(self, model: str, strength: float) -> float:
        """The strength of a GPU of this model, which would have that one."""
        if self.own is not None:
            return self.own
        by_name = {_plain_name(name): given for name, given in self.models}
        return by_name.get(_plain_name(model), strength)


def parse_override(text: str) -> tuple[str, float]:
    """Read `NAME=NUMBER`: the strength of a model or a node."""
    name, _, number = text.rpartition("=")
    if not name.strip():
        raise InvalidValueError(
            f"{text!r} names no model or node", "Write NAME=NUMBER, for example 'RTX 4070 Ti=70'."
        )
    try:
        return name.strip(), parse_strength(number)
    except InvalidValueError as error:
        raise InvalidValueError(f"{name.strip()}: {error.message}", error.hint) from error


def _plain_name(model: str) -> str:
    return " ".join(_DECORATION.sub(" ", model).split()).casefold()


def parse_strength(text: str) -> float:
    """Read a strength: a positive number, to one decimal as all strengths are."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    return check_strength(round(number, 1) if math.isfinite(number) else 0.0, text)


def check_strength(strength: float, written: str | None = None) -> float:
    """The strength, if a GPU may have it; else InvalidValueError names what was written."""
    if not 0 < strength <= STRONGEST:
        raise InvalidValueError(
            f"{format_strength(strength) if written is None else repr(written)} is not a strength"
            " of a GPU",
            f"Write a positive number up to {format_strength(STRONGEST)}, for example 100: an A100"
            " has 100, a T4 about 26. To see those of this machine: aliquot gpus",
        )
    return strength


def format_strength(strength: float) -> str:
    """For people: `25.7`, `100`."""
    return f"{strength:.10g}"


# From data sheets, without sparsity; of FP16 or FP32 itself where a GPU has no tensor cores. A
# board with two GPUs is counted by the GPU.
GPU_MODELS = {
    "K80": Throughput(4.4, 4.4, 240),
    "M40": Throughput(6.8, 6.8, 288),
    "M60": Throughput(4.8, 4.8, 160),
    "P4": Throughput(5.5, 5.5, 192),
    "P40": Throughput(11.8, 11.8, 346),
    "P100": Throughput(10.6, 21.2, 732),
    "V100": Throughput(15.7, 125, 900),
    "V100S": Throughput(16.4, 130, 1134),
    "T4": Throughput(8.1, 65, 320),
    "TITAN V": Throughput(14.9, 119, 653),
    "TITAN RTX": Throughput(16.3, 130, 672),
    "Quadro RTX 6000": Throughput(16.3, 130, 672),
    "Quadro RTX 8000": Throughput(16.3, 130, 672),
    "GTX 1080 Ti": Throughput(11.3, 11.3, 484),
    "RTX 2080 Ti": Throughput(13.4, 108, 616),
    "RTX 3060": Throughput(12.7, 51, 360),
    "RTX 3070": Throughput(20.3, 81, 448),
    "RTX 3080": Throughput(29.8, 119, 760),
    "RTX 3090": Throughput(35.6, 142, 936),
    "RTX 4060": Throughput(15.1, 60, 272),
    "RTX 4070": Throughput(29.1, 117, 504),
    "RTX 4080": Throughput(48.7, 195, 717),
    "RTX 4090": Throughput(82.6, 330, 1008),
    "RTX 5090": Throughput(104.8, 419, 1792),
    "A2": Throughput(4.5, 18, 200),
    "A10": Throughput(31.2, 125, 600),
    "A10G": Throughput(31.2, 125, 600),
    "A16": Throughput(4.5, 18, 200),
    "A30": Throughput(10.3, 165, 933),
    "A40": Throughput(37.4, 150, 696),
    "RTX A4000": Throughput(19.2, 77, 448),
    "RTX A5000": Throughput(27.8, 111, 768),
    "RTX A6000": Throughput(38.7, 155, 768),
    "RTX 6000 Ada Generation": Throughput(91.1, 364, 960),
    "A100": Throughput(19.5, 312, 1555),
    "A800": Throughput(19.5, 312, 1555),
    "L4": Throughput(30.3, 121, 300),
    "L40": Throughput(90.5, 181, 864),
    "L40S": Throughput(91.6, 362, 864),
    "L20": Throughput(59.8, 119, 864),
    "H20": Throughput(44, 148, 4000),
    "H100": Throughput(67, 989, 3352),
    "H800": Throughput(67, 989, 3352),
    "H200": Throughput(67, 989, 4800),
    "GH200": Throughput(67, 989, 4000),
    "B200": Throughput(75, 2250, 8000),
    "B300": Throughput(75, 2250, 8000),
}
_BY_NAME = {name.casefold(): known for name, known in GPU_MODELS.items()}
