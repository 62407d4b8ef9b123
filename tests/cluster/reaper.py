"""Outlives the owner of a cluster, however that ends, and removes what is not to be kept of it.

Started by the owner with the cluster's lock and a pipe as its standard input, whose end means that
the owner is gone: `python -m cluster.reaper NUMBER FOLDER LOCK`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cluster.registry import Place


def main() -> None:
    number, folder, lock = sys.argv[1:]
    place = Place(int(number), Path(folder), int(lock))
    sys.stdin.read()
    if not place.is_kept:
        place.remove()


if __name__ == "__main__":
    main()
