"""The PyTorch workloads: make(NAME) builds one, warmed up, on the first GPU.

    mm        bf16 matrix products of 4096, a wait after every 20
    mm2       the same, a wait after every 2: for fine stamps
    train     ResNet-50, batch 128, bf16, channels last; two steps ahead of the GPU
    decode    a transformer of 12 layers and width 1024 decoding for 16, one CUDA graph per token
    tiny      additions of a few microseconds, a wait after every 200
    four      matrix products on 4 streams that fork and join by events
    forty     the same on 40
    memory    sums over 1 GiB, which memory alone bounds
    gather    reads of rows of 64 bytes at random places in 64 GiB
    latency   one graph of a 12-layer transformer over 64 tokens, and a wait: an inference step

A step ends with a wait for its own work, but for the training's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from ptx import DriverError, illegal_access
from resnet import resnet50
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda"
BF16 = torch.bfloat16
SIDE = 4096
WARM_STEPS = 8
FOREVER_CYCLES = 1 << 60


class Work:
    """What all have in common; a step that waits for its own end leaves nothing to finish."""

    version = torch.__version__

    def step(self) -> int:
        raise NotImplementedError

    def finish(self) -> int:
        torch.cuda.synchronize()
        return 0

    def right(self) -> bool:
        return True

    def illegal(self) -> str:
        try:
            return illegal_access()
        except DriverError as error:  # no PTX here: PyTorch's own way to lose a context
            reached = torch.zeros(8, device=DEVICE)[torch.full((8,), 1 << 40, device=DEVICE)]
            return f"{error}; then {reached.sum().item()}"

    def forever(self) -> None:
        torch.cuda._sleep(FOREVER_CYCLES)  # noqa: SLF001 - the one kernel of PyTorch that can
        torch.cuda.synchronize()


class Matmul(Work):
    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.matrix = torch.randn(SIDE, SIDE, device=DEVICE, dtype=BF16)
        self.product = torch.empty_like(self.matrix)
        self.step()
        self.expected = self.product.clone()

    def step(self) -> int:
        for _ in range(self.batch):
            torch.mm(self.matrix, self.matrix, out=self.product)
        torch.cuda.synchronize()
        return self.batch

    def right(self) -> bool:
        return torch.equal(self.product, self.expected)


class Streams(Work):
    def __init__(self, count: int, each: int) -> None:
        self.each = each
        self.matrix = torch.randn(SIDE, SIDE, device=DEVICE, dtype=BF16)
        self.products = [torch.empty_like(self.matrix) for _ in range(count)]
        self.streams = [torch.cuda.Stream() for _ in range(count)]

    def step(self) -> int:
        main = torch.cuda.current_stream()
        for stream, product in zip(self.streams, self.products, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(self.each):
                    torch.mm(self.matrix, self.matrix, out=product)
        for stream in self.streams:
            main.wait_stream(stream)
        torch.cuda.synchronize()
        return self.each * len(self.streams)


class Train(Work):
    AHEAD = 2
    BATCH = 128

    def __init__(self) -> None:
        self.model = resnet50().to(DEVICE, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        images = torch.randn(self.BATCH, 3, 224, 224, device=DEVICE)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (self.BATCH,), device=DEVICE)
        self.open: deque[torch.cuda.Event] = deque()

    def launch(self) -> None:
        with torch.autocast(DEVICE, BF16):
            loss = functional.cross_entropy(self.model(self.images), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def step(self) -> int:
        self.launch()
        event = torch.cuda.Event()
        event.record()
        self.open.append(event)
        if len(self.open) <= self.AHEAD:
            return 0
        self.open.popleft().synchronize()
        return 1

    def finish(self) -> int:
        torch.cuda.synchronize()
        left = len(self.open)
        self.open.clear()
        return left


class Tiny(Work):
    BATCH = 200

    def __init__(self) -> None:
        self.numbers = torch.zeros(1 << 20, device=DEVICE)

    def step(self) -> int:
        for _ in range(self.BATCH):
            self.numbers.add_(1)
        torch.cuda.synchronize()
        return self.BATCH


class Memory(Work):
    BATCH = 8

    def __init__(self) -> None:
        self.source = torch.randn(1 << 28, device=DEVICE)
        self.sums = torch.empty_like(self.source)

    def step(self) -> int:
        for _ in range(self.BATCH):
            torch.add(self.source, 1.0, out=self.sums)
        torch.cuda.synchronize()
        return self.BATCH


class Gather(Work):
    """Addresses are translated anew for almost every row: the size of the GPU's pages shows."""

    BATCH, ROWS, GIB = 8, 1 << 22, 64

    def __init__(self) -> None:
        rows = self.GIB << 30 >> 6
        self.source = torch.zeros(rows, 16, device=DEVICE)
        self.places = torch.randint(0, rows, (self.ROWS,), device=DEVICE)
        self.found = torch.empty(self.ROWS, 16, device=DEVICE)

    def step(self) -> int:
        for _ in range(self.BATCH):
            torch.index_select(self.source, 0, self.places, out=self.found)
        torch.cuda.synchronize()
        return self.BATCH


class Decoder(nn.Module):
    """A transformer with its cache of keys and values, as many tokens long as it is wide."""

    LAYERS, WIDTH, HEADS, CONTEXT, BATCH, WORDS = 12, 1024, 16, 512, 16, 32000

    def __init__(self) -> None:
        super().__init__()
        wide, head = self.WIDTH, self.WIDTH // self.HEADS
        made = {"device": DEVICE, "dtype": BF16}

        def linear(inward: int, outward: int) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Linear(inward, outward, bias=False, **made) for _ in range(self.LAYERS)
            )

        self.embedding = nn.Embedding(self.WORDS, wide, **made)
        self.asks, self.says = linear(wide, 3 * wide), linear(wide, wide)
        self.widen, self.narrow = linear(wide, 4 * wide), linear(4 * wide, wide)
        cache = (self.LAYERS, self.BATCH, self.HEADS, self.CONTEXT, head)
        self.keys, self.values = torch.randn(cache, **made), torch.randn(cache, **made)
        self.tokens = torch.randint(0, self.WORDS, (self.BATCH,), device=DEVICE)
        self.place = torch.zeros(1, dtype=torch.long, device=DEVICE)

    def forward(self) -> None:
        """The next token of each."""
        x = self.embedding(self.tokens)
        for layer in range(self.LAYERS):
            x = x + self.attend(layer, functional.layer_norm(x, (self.WIDTH,)))
            y = functional.gelu(self.widen[layer](functional.layer_norm(x, (self.WIDTH,))))
            x = x + self.narrow[layer](y)
        self.tokens.copy_((x @ self.embedding.weight.T).argmax(-1))
        self.place.add_(1).remainder_(self.CONTEXT)

    def attend(self, layer: int, x: Tensor) -> Tensor:
        asked = self.asks[layer](x).view(self.BATCH, 3, self.HEADS, 1, -1)
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, self.place, asked[:, 1])
        values.index_copy_(2, self.place, asked[:, 2])
        seen = functional.scaled_dot_product_attention(asked[:, 0], keys, values)
        said: Tensor = self.says[layer](seen.reshape(self.BATCH, self.WIDTH))
        return said


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of the work, after it was warmed up on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


class Decode(Work):
    BATCH = 8

    @torch.no_grad()
    def __init__(self) -> None:
        self.decoder = Decoder()
        self.graph = captured(self.decoder)

    def step(self) -> int:
        for _ in range(self.BATCH):
            self.graph.replay()
        torch.cuda.synchronize()
        return self.BATCH


class Latency(Work):
    @torch.no_grad()
    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(
            1024, 16, 4096, batch_first=True, dtype=BF16, device=DEVICE
        )
        self.model = nn.TransformerEncoder(layer, 12).eval()
        self.prompt = torch.randn(1, 64, 1024, device=DEVICE, dtype=BF16)
        self.graph = captured(lambda: self.model(self.prompt))

    def step(self) -> int:
        self.graph.replay()
        torch.cuda.synchronize()
        return 1


WORKLOADS: dict[str, Callable[[], Work]] = {
    "mm": lambda: Matmul(20),
    "mm2": lambda: Matmul(2),
    "train": Train,
    "decode": Decode,
    "tiny": Tiny,
    "four": lambda: Streams(4, 5),
    "forty": lambda: Streams(40, 1),
    "memory": Memory,
    "gather": Gather,
    "latency": Latency,
}


def make(name: str) -> Work:
    work = WORKLOADS[name]()
    for _ in range(WARM_STEPS):
        work.step()
    work.finish()
    return work
