"""The processes of a cluster: started in its control group, logged, ended by their id.

A server writes what it says to a log of its own; what goes wrong is raised with the log's end.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cluster.cgroups import Cgroup
from cluster.registry import ClusterError

# Debian keeps some of the tools outside an ordinary person's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/sbin", "/sbin"])
_LONGEST_LINE = 500
# Waits only end what hangs. Their seconds are for an idle machine; a busy one gets more.
BUSY = 4.0
_JOIN = 'until [ "$1" = -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


@dataclass
class Server:
    """A program that runs until it is stopped. `ready` says whether it serves."""

    name: str
    command: Sequence[str]
    log: Path
    cgroup: Cgroup
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    patience: float = 20.0  # seconds from SIGTERM to SIGKILL
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has used, all its threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def start(self) -> None:
        """Start it, and return at once."""
        assert not self.running, f"{self.name} runs already"
        joins = [str(path) for path in self.cgroup.joins()]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _JOIN, "sh", *joins, "--", *self.command],
                env={**os.environ, "PATH": PATH, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Return as soon as it serves; fail when it has ended or is late (see BUSY)."""
        seconds *= BUSY
        deadline = time.monotonic() + seconds
        while not self.ready():
            if not self.running:
                raise ClusterError(f"{self.name} ended by itself; its log ends:\n{self.log_end()}")
            if time.monotonic() > deadline:
                late = f"{self.name} does not serve after {seconds:.0f} s"
                raise ClusterError(f"{late}; its log ends:\n{self.log_end()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as an orderly machine would: SIGTERM, and SIGKILL only when that does nothing."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def restart(self) -> None:
        """Stop it, start it again, and return when it serves."""
        self.stop()
        self.start()
        self.wait_ready()

    def log_end(self, lines: int = 40) -> str:
        if not self.log.exists():
            return f"(no {self.log})"
        end = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(line[:_LONGEST_LINE] for line in end)


def answers(url: str) -> bool:
    """Whether a server says that it is well; its own self-signed certificate is believed."""
    return page(url) is not None


def page(url: str) -> str | None:
    """What a server that is well says; None if it is not."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=_trusting()) as response:  # noqa: S310 - ours
            return response.read().decode() if response.status == 200 else None
    except OSError:
        return None


@cache
def _trusting() -> ssl.SSLContext:
    """Once for all: each reads every authority that the machine knows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
