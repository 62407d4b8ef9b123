"""What keeps a cluster from running on this machine: `python -m cluster.obstacles` says it.

It prints nothing where nothing does. Packages that can be installed are not obstacles.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from cluster.programs import ARCHITECTURES


def obstacle() -> str | None:
    """The first thing in the way, or None."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        return f"needs Linux on {' or '.join(ARCHITECTURES)}, this is {platform.platform()}"
    if os.getuid() != 0:
        return "needs root, for namespaces and control groups"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "needs control groups: /sys/fs/cgroup cannot be written"
    if not Path("/dev/kmsg").exists():
        return "needs the kernel's log: there is no /dev/kmsg for the kubelet"
    if "overlay" not in Path("/proc/filesystems").read_text("ascii"):
        return "needs the overlay file system, which this kernel does not have"
    return _forbidden_namespaces()


def _forbidden_namespaces() -> str | None:
    own = ["unshare", "--mount", "--net", "--uts", "true"]
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    return f"needs namespaces: {done.stderr.strip()}" if done.returncode else None


if __name__ == "__main__":
    if found := obstacle():
        print(found)
