"""The console beside a pool, which starts it: python -m aliquot.console ADDRESS [SHAPE].

It writes its address to standard output, and ends when its standard input does.
"""

from __future__ import annotations

import sys

from aliquot import slices
from aliquot.console.console_process import end_with_stdin, serve
from aliquot.console.listening import Listen, parse_address
from aliquot.devices import parse_shape
from aliquot.model.errors import AliquotError


def main(address: str, shape: str | None = None) -> int:
    """Serve; the exit code."""
    end_with_stdin()
    try:
        state = slices.locate(None if shape is None else parse_shape(shape))
        host, port = parse_address(address)
        serve(state, Listen(host, port), _tell)
    except AliquotError as error:
        sys.stderr.write(f"{error.one_line}\n")
        return 1
    return 0


def _tell(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
