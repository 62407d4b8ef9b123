"""The matrix products of `mm`, in JAX: twenty of them compiled as one, then a wait."""

from __future__ import annotations

import os

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax
import jax.numpy as jnp

SIDE, BATCH = 4096, 20


class Matmul:
    version = jax.__version__

    def __init__(self) -> None:
        # Scaled, so that products of products stay finite.
        numbers = jax.random.normal(jax.random.key(0), (SIDE, SIDE)) / SIDE**0.5
        self.matrix = numbers.astype(jnp.bfloat16)

        def products(left: jax.Array, right: jax.Array) -> jax.Array:
            for _ in range(BATCH):
                left = left @ right
            return left

        self.products = jax.jit(products)
        self.expected = self.product = self.products(self.matrix, self.matrix)

    def step(self) -> int:
        self.product = self.products(self.matrix, self.matrix)
        self.product.block_until_ready()
        return BATCH

    def finish(self) -> int:
        return 0

    def right(self) -> bool:
        return bool((self.product == self.expected).all())

    def illegal(self) -> str:
        return "not in JAX"

    def forever(self) -> None:
        return


def make(name: str) -> Matmul:
    assert name == "mm", name
    return Matmul()
