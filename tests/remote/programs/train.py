"""Train three small models on a device, and print their losses to the last bit.

train.py DEVICE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 4


class Transformer(nn.Module):  # type: ignore[misc]
    """Two layers with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, words: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        made = self.layers(self.embedding(words), mask=mask, is_causal=True)
        return self.head(made).transpose(1, 2)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def words() -> tuple[Any, Any]:
    return torch.randint(0, 50, (4, 12)), torch.randint(0, 50, (4, 12))


def vectors() -> tuple[Any, Any]:
    return torch.randn(16, 20), torch.randint(0, 10, (16,))


def images() -> tuple[Any, Any]:
    return torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))


def losses(
    device: str, model: Callable[[], Any], data: Callable[[], Any], optimizer: Any
) -> list[str]:
    torch.manual_seed(1)
    trained = model().to(device)
    # As on a GPU: on a CPU PyTorch would choose another way to step.
    steps = optimizer(trained.parameters(), lr=0.05, foreach=True)
    found = []
    for _ in range(STEPS):
        inputs, wanted = (one.to(device) for one in data())
        steps.zero_grad()
        loss = functional.cross_entropy(trained(inputs), wanted)
        loss.backward()
        steps.step()
        found.append(loss.item().hex())
    return found


def main() -> None:
    device = sys.argv[1]
    print(
        json.dumps(
            {
                "mlp": losses(device, mlp, vectors, torch.optim.AdamW),
                "convolutions": losses(device, convolutions, images, torch.optim.SGD),
                "transformer": losses(device, Transformer, words, torch.optim.Adam),
            }
        )
    )


if __name__ == "__main__":
    main()
