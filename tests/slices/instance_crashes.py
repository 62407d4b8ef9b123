"""The state machine of test_instance_steps.py on the simulated driver, for a process of its own.

nvidia-ml-py serves one driver in a process. Usage: instance_crashes.py SHAPE FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from aliquot.devices import parse_shape, simulated_driver
from aliquot.devices.inventory import nvml_session
from aliquot.devices.mig import NvmlInstances
from aliquot.model.instance import DividedGpu, Place
from slices import test_instance_steps as steps


class CrashingInstances:
    """Instances through NVML under the names of the test; killed before or after a step."""

    def __init__(self, real: NvmlInstances) -> None:
        self._real = real
        self._names = dict(zip((one.uuid for one in real.read()), steps.GPUS, strict=True))
        self.until_crash: int | None = None
        self.busy: set[str] = set()

    @property
    def there(self) -> dict[Place, str | None]:
        return {one.place: one.device for divided in self.read() for one in divided.instances}

    def read(self) -> list[DividedGpu]:
        return [
            replace(
                divided,
                uuid=self._names[divided.uuid],
                instances=tuple(
                    replace(one, place=replace(one.place, gpu=self._names[divided.uuid]))
                    for one in divided.instances
                ),
            )
            for divided in self._real.read()
        ]

    def make(self, place: Place) -> None:
        self._step(self._real.make, place)

    def divide(self, place: Place) -> None:
        self._step(self._real.divide, place)

    def undivide(self, place: Place) -> None:
        self._step(self._real.undivide, place)

    def destroy(self, place: Place) -> None:
        self._step(self._real.destroy, place)

    def _step(self, act: Callable[[Place], None], place: Place) -> None:
        (real,) = (uuid for uuid, name in self._names.items() if name == place.gpu)
        self._count()
        act(replace(place, gpu=real))
        self._count()

    def _count(self) -> None:
        if self.until_crash is not None:
            self.until_crash -= 1
            if self.until_crash < 0:
                raise steps.CrashError


def main() -> None:
    """Run the state machine on a simulated machine in the folder."""
    driver = simulated_driver(parse_shape(sys.argv[1]), Path(sys.argv[2]))
    with nvml_session(driver) as nvml:
        gpus = CrashingInstances(NvmlInstances(nvml))
        assert {one.id: one for one in gpus.read()[0].profiles} == {
            one.id: one for one in steps.PROFILES
        }

        class OnDriver(steps.Crashing):
            """The same, on the GPUs of the simulated driver."""

            def __init__(self) -> None:
                super().__init__()
                self.world.gpus = gpus  # type: ignore[assignment]

            def teardown(self) -> None:
                super().teardown()
                for place in self.theirs:
                    gpus.undivide(place)
                    gpus.destroy(place)

        run_state_machine_as_test(
            OnDriver, settings=settings(max_examples=30, stateful_step_count=15, deadline=None)
        )


if __name__ == "__main__":
    main()
