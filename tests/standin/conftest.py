"""Fixtures: a machine of simulated GPUs with a real arbiter, under a folder of fitted stand-ins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot import devices
from standin.by_hand import Arbiter
from standin.gated import Gated
from standin.machine import CONTEXT, GIB, Machine, fitted_library

MakeMachine = Callable[..., Machine]
MakeGated = Callable[..., Gated]


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """The compiled parts: of the build named by ALIQUOT_TEST_NATIVE, or the installed ones."""
    named = os.environ.get("ALIQUOT_TEST_NATIVE")
    return Path(named) if named else devices.native_dir()


@pytest.fixture(scope="session")
def library(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    return fitted_library(folder / "fitted", native_dir, native_dir / "sim")


@pytest.fixture
def make_machine(native_dir: Path, library: Path, short_tmp: Path) -> Iterator[MakeMachine]:
    made: list[Machine] = []

    def make(
        shape: str = "h100:1",
        *,
        driver: Path | None = None,
        fitted: Path = library,
        options: tuple[str, ...] = (),
        **variables: str,
    ) -> Machine:
        place = short_tmp / f"machine{len(made)}"
        (place / "gpus").mkdir(parents=True)
        machine = Machine(
            native=native_dir,
            library=fitted,
            state=place / "state",
            meeting_place=place / "gpus",
            shape=shape,
            driver=driver or native_dir / "sim",
            variables=variables,
            options=options,
        )
        machine.start_arbiter()
        made.append(machine)
        return machine

    yield make
    for machine in made:
        machine.close()


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    """One simulated H100."""
    return make_machine("h100:1")


@pytest.fixture
def make_gated(native_dir: Path, library: Path, short_tmp: Path) -> Iterator[MakeGated]:
    """Makes machines whose credit the test sets."""
    made: list[Gated] = []

    def make(shape: str = "h100:1", *, policy: int = 0, driver: Path | None = None) -> Gated:
        place = short_tmp / f"gated{len(made)}"
        (place / "gpus").mkdir(parents=True)
        machine = Machine(
            native=native_dir,
            library=library,
            state=place / "state",
            meeting_place=place / "gpus",
            shape=shape,
            driver=driver or native_dir / "sim",
        )
        arbiter = Arbiter(
            place / "grant",
            machine.uuids_by_an_arbiter(),
            memory=64 * GIB,
            context_bytes=CONTEXT,
            policy=policy,
        )
        made.append(Gated(machine, arbiter))
        return made[-1]

    yield make
    for gated in made:
        gated.close()


@pytest.fixture
def gated(make_gated: MakeGated) -> Gated:
    """One simulated H100 whose credit the test sets."""
    return make_gated()
