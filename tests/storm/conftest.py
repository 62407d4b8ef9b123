"""The storm uses the machines of the stand-in's tests."""

from standin.conftest import library, make_machine, native_dir

__all__ = ["library", "make_machine", "native_dir"]
