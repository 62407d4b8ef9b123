"""A notebook's kernel, and a client of it as a frontend has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support import wait_until

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager


class Notebook:
    """A kernel and a client of it, as a frontend has them."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client: BlockingKernelClient = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def run(self, code: str) -> str:
        """What a cell prints, and its error."""
        parts: list[str] = []

        def hear(message: dict[str, object]) -> None:
            content = message["content"]
            assert isinstance(content, dict)
            if message["msg_type"] == "stream":
                parts.append(content["text"])
            elif message["msg_type"] == "error":
                parts.append("\n".join(content["traceback"]))

        self.client.execute_interactive(code, output_hook=hear, timeout=60)
        return "".join(parts)

    def restarts(self, *, in_a_slice: bool) -> None:
        """Wait until the kernel that the last cell restarted answers; the same process."""
        file = Path(f"/proc/{self.pid}/environ")
        wait_until(lambda: (b"ALIQUOT_KERNEL=" in file.read_bytes()) is in_a_slice)
        self.client.wait_for_ready(timeout=60)

    def starts_to_print(self, code: str, words: str) -> None:
        """Run a cell, and return when it has printed these words."""
        self.client.execute(code)
        printed = ""
        while words not in printed:
            message = self.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
