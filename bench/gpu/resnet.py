"""ResNet-50 in plain PyTorch, the stride in the 3x3 convolutions: 25,557,032 parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
EXPANSION = 4


def convolution(inward: int, outward: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inward, outward, size, stride, size // 2, bias=False), nn.BatchNorm2d(outward)
    )


class Bottleneck(nn.Module):
    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = width * EXPANSION
        self.reduce = convolution(inward, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.expand = convolution(width, outward, 1)
        same = stride == 1 and inward == outward
        self.shortcut = nn.Identity() if same else convolution(inward, outward, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.middle(y))
        return torch.relu(self.expand(y) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inward = 64
    for width, blocks, stride in STAGES:
        for number in range(blocks):
            layers.append(Bottleneck(inward, width, stride if number == 0 else 1))
            inward = width * EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, 1000)]
    return nn.Sequential(*layers)
