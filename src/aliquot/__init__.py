"""Aliquot gives programs exact parts of GPUs.

The package is used by its command, `aliquot`; the modules below `aliquot.cli` are its parts, each
a layer that imports only from the layers below it (see docs/architecture.md).
"""

__version__ = "0.1.0"
