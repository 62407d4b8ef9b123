"""Fixtures: a fake NVML, an arbiter over it, tenants and owners that end with the test."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import support
from aliquot import devices
from arbiter.rig import (
    FAKE_SOURCE,
    KILLER_SOURCE,
    Arbiter,
    BackgroundArbiter,
    Machine,
    Owner,
    Rounds,
    Tenant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """The compiled parts: those of a build named by ALIQUOT_TEST_NATIVE, or the installed ones."""
    named = os.environ.get("ALIQUOT_TEST_NATIVE")
    return Path(named) if named else devices.native_dir()


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    flags = ("-Wall", "-fvisibility=hidden")
    return support.compile_library(folder, "libfake.so", FAKE_SOURCE.read_text(), *flags)


@pytest.fixture
def machine(short_tmp: Path, fake_nvml: Path) -> Machine:
    return Machine(short_tmp, fake_nvml)


@pytest.fixture
def stopped_arbiter(native_dir: Path, short_tmp: Path, machine: Machine) -> Iterator[Arbiter]:
    """An arbiter that is not yet started."""
    arbiter = Arbiter(short_tmp / "state", native_dir / "bin" / "aliquot-arbiter", machine)
    yield arbiter
    arbiter.close()


@pytest.fixture
def arbiter(stopped_arbiter: Arbiter) -> Arbiter:
    stopped_arbiter.start()
    return stopped_arbiter


@pytest.fixture
def background(native_dir: Path, short_tmp: Path, machine: Machine) -> Iterator[BackgroundArbiter]:
    program = native_dir / "bin" / "aliquot-arbiter"
    arbiter = BackgroundArbiter(short_tmp / "state", program, machine)
    arbiter.start()
    yield arbiter
    arbiter.close()


@pytest.fixture
def tenants() -> Iterator[Callable[[Path], Tenant]]:
    """Starts tenants of a grant by its directory."""
    with ExitStack() as ends:

        def start(directory: Path) -> Tenant:
            tenant = Tenant(directory)
            ends.callback(tenant.close)
            return tenant

        yield start


@pytest.fixture
def owners() -> Iterator[Callable[..., Owner]]:
    """Starts processes that ask for a grant."""
    with ExitStack() as ends:

        def start(state: Path, request: str, uid: int | None = None) -> Owner:
            owner = Owner(state, request, uid)
            ends.callback(owner.close)
            return owner

        yield start


@pytest.fixture(scope="session")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("killer"), KILLER_SOURCE.read_text()
    return support.compile_library(folder, "libkill.so", source, "-fvisibility=hidden")


@pytest.fixture(params=["the arbiter", "the arbiter and its parent"])
def rounds(
    request: pytest.FixtureRequest,
    short_tmp: Path,
    native_dir: Path,
    fake_nvml: Path,
    killer: Path,
) -> Rounds:
    program = native_dir / "bin" / "aliquot-arbiter"
    if b"__asan_init" in program.read_bytes():
        pytest.skip("AddressSanitizer must be the first library")
    with_parent = request.param != "the arbiter"
    return Rounds(short_tmp, program, fake_nvml, killer, with_parent=with_parent)
