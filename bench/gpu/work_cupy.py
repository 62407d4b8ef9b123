"""The matrix products of `mm`, in CuPy (fp16: it has no bf16), a wait after every 20."""

from __future__ import annotations

import cupy

SIDE, BATCH = 4096, 20


class Matmul:
    version = cupy.__version__

    def __init__(self) -> None:
        self.matrix = cupy.random.randn(SIDE, SIDE).astype(cupy.float16)
        self.product = cupy.empty_like(self.matrix)
        self.step()
        self.expected = self.product.copy()

    def step(self) -> int:
        for _ in range(BATCH):
            cupy.matmul(self.matrix, self.matrix, out=self.product)
        cupy.cuda.Device().synchronize()
        return BATCH

    def finish(self) -> int:
        return 0

    def right(self) -> bool:
        return bool((self.product == self.expected).all())

    def illegal(self) -> str:
        return "not in CuPy"

    def forever(self) -> None:
        return


def make(name: str) -> Matmul:
    assert name == "mm", name
    return Matmul()
