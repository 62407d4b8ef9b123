"""Instances of GPUs (MIG) through crashes: nothing leaks, no places overlap, others' stay."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aliquot.model import Isolation, Request, parse_amount
from aliquot.model.errors import InstanceError, NoCapacityError
from aliquot.model.instance import DividedGpu, Instance, Place, Profile
from aliquot.model.selection import GpuSelection
from aliquot.slices.instance_plan import choose
from aliquot.slices.instances import OwnInstances
from support import uuid_of

GIB = 1 << 30
PROFILES = (  # of an H100 with 80 GB
    Profile(19, "MIG 1g.10gb", 1, 1, 9984 << 20, tuple(range(7))),
    Profile(15, "MIG 1g.20gb", 1, 2, 20096 << 20, (0, 2, 4, 6)),
    Profile(14, "MIG 2g.20gb", 2, 2, 20096 << 20, (0, 2, 4)),
    Profile(9, "MIG 3g.40gb", 3, 4, 40448 << 20, (0, 4)),
    Profile(5, "MIG 4g.40gb", 4, 4, 40448 << 20, (0,)),
    Profile(0, "MIG 7g.80gb", 7, 8, 81152 << 20, (0,)),
)
GPUS = (uuid_of(0), uuid_of(1))


class CrashError(BaseException):
    """The process was killed here."""


class RefusalError(Exception):
    """NVML refuses."""


@dataclass
class FakeGpus:
    """GPUs in MIG mode: like NVML, it refuses what overlaps and what is in use."""

    there: dict[Place, str | None] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    until_crash: int | None = None  # steps that are still done
    fails: bool = False
    made: int = 0
    reads: int = 0
    silent: dict[int, str] = field(default_factory=dict)  # GPUs that do not answer, by read

    def step(self) -> None:
        if self.until_crash is not None:
            self.until_crash -= 1
            if self.until_crash < 0:
                raise CrashError

    def read(self) -> list[DividedGpu]:
        self.reads += 1
        return [
            DividedGpu(
                gpu,
                PROFILES,
                tuple(
                    Instance(place, device, device in self.busy, device is not None)
                    for place, device in self.there.items()
                    if place.gpu == gpu
                ),
            )
            for gpu in GPUS
            if self.silent.get(self.reads) != gpu
        ]

    def make(self, place: Place) -> None:
        self.step()
        if any(place.overlaps(other) for other in self.there):
            raise RefusalError
        self.there[place] = None
        self.step()

    def divide(self, place: Place) -> None:
        self.step()
        if self.fails:
            raise RefusalError
        self.made += 1
        self.there[place] = f"MIG-{self.made}"
        self.step()

    def undivide(self, place: Place) -> None:
        self.step()
        if self.there[place] in self.busy:
            raise RefusalError
        self.there[place] = None
        self.step()

    def destroy(self, place: Place) -> None:
        self.step()
        if self.there[place] is not None:
            raise RefusalError
        del self.there[place]
        self.step()


@dataclass
class World:
    """InstanceMaker, and the processes that ask for instances of them."""

    folder: Path
    gpus: FakeGpus = field(default_factory=FakeGpus)
    alive: set[int] = field(default_factory=set)
    granted: dict[int, str] = field(default_factory=dict)  # device by process
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def own(self, *, adopts: bool = False) -> OwnInstances:
        return OwnInstances(
            self.folder,
            self.gpus,
            lambda: set(self.granted.values()),
            lambda entry: entry.pid in self.alive,
            adopts=adopts,
        )

    def start(self, request: Request, *, adopts: bool = False) -> int:
        """A process that gets an instance and makes a grant of it."""
        pid = next(self.pids)
        self.alive.add(pid)
        try:
            device = self.own(adopts=adopts).acquire(request, pid, 1)
            assert device not in self.granted.values()
            self.granted[pid] = device
            self.own().confirm(pid, 1)
        except BaseException:
            if pid not in self.granted:
                self.alive.discard(pid)
            raise
        return pid

    def end(self, pid: int) -> None:
        self.alive.discard(pid)
        self.granted.pop(pid, None)

    def entries(self) -> list[Place]:
        path = self.folder / "instances.json"
        if not path.exists():
            return []
        return [Place(**one["place"]) for one in json.loads(path.read_text("utf-8"))["entries"]]


def hardware(memory: str | None = None, compute: int = 0, gpu: str | None = None) -> Request:
    return Request(
        memory=None if memory is None else parse_amount(memory),
        compute_percent=compute,
        isolation=Isolation.HARDWARE,
        which=GpuSelection(named=(gpu,) if gpu else ()),
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("request_", "profile"),
    [
        (hardware("4GiB"), 19),
        (hardware("9.75GiB"), 19),
        (hardware("10GiB"), 15),
        (hardware("10GiB", 20), 14),
        (hardware("8GiB", 30), 9),
        (hardware("8GiB", 50), 5),
        (hardware("50%", 40), 9),
        (hardware(compute=50), 5),
        (hardware("60GiB"), 0),
        (hardware(), 0),
    ],
)
def test_the_smallest_profile_that_is_enough_answers(
    world: World, request_: Request, profile: int
) -> None:
    world.start(request_)
    assert [place.profile for place in world.gpus.there] == [profile]


def test_a_place_is_taken_that_costs_larger_profiles_least(world: World) -> None:
    for _ in range(3):
        world.start(hardware("4GiB", gpu=GPUS[0]))
    world.start(hardware("30GiB", gpu=GPUS[0]))
    assert Place(GPUS[0], 9, 0, 4) in world.gpus.there


def test_without_room_a_request_is_refused_and_leaves_nothing(world: World) -> None:
    world.start(hardware(gpu=GPUS[0]))
    with pytest.raises(NoCapacityError, match="no GPU in MIG mode has a place for 1 GiB"):
        world.start(hardware("1GiB", gpu=GPUS[0]))
    assert len(world.entries()) == 1
    with pytest.raises(InstanceError, match="leave no GPU in MIG mode"):
        world.start(hardware("1GiB", gpu="GPU-f"))


def test_an_unknown_instance_answers_only_by_policy_and_is_never_destroyed(world: World) -> None:
    theirs = Place(GPUS[0], 19, 0, 1)
    world.gpus.there[theirs] = "MIG-theirs"
    pid = world.start(hardware("4GiB"))
    assert world.granted[pid] != "MIG-theirs"
    adopting = world.start(hardware("4GiB"), adopts=True)
    assert world.granted[adopting] == "MIG-theirs"
    for one in (pid, adopting):
        world.end(one)
    world.own().clean()
    assert world.gpus.there == {theirs: "MIG-theirs"}
    assert world.entries() == []


def test_an_instance_that_cannot_be_finished_is_not_left(world: World) -> None:
    world.gpus.fails = True
    with pytest.raises(RefusalError):
        world.start(hardware("4GiB"))
    assert world.gpus.there == {}
    assert world.entries() == []


def test_an_instance_with_a_program_left_in_it_stays_until_that_has_ended(world: World) -> None:
    pid = world.start(hardware("4GiB"))
    device = world.granted[pid]
    world.gpus.busy.add(device)
    world.end(pid)
    world.own().clean()
    assert list(world.gpus.there.values()) == [device]
    world.gpus.busy.clear()
    world.own().clean()
    assert world.gpus.there == {}


@pytest.mark.parametrize("read", [1, 2])
def test_a_gpu_that_does_not_answer_keeps_its_instances_and_entries(
    world: World, read: int
) -> None:
    used, unused = (world.start(hardware("4GiB", gpu=GPUS[0])) for _ in range(2))
    world.end(unused)
    world.gpus.silent = {world.gpus.reads + read: GPUS[0]}
    world.own().clean()
    assert set(world.entries()) == set(world.gpus.there)
    assert world.granted[used] in world.gpus.there.values()
    world.own().clean()
    assert list(world.gpus.there.values()) == [world.granted[used]]


def test_a_choice_never_overlaps_what_is_reserved() -> None:
    divided = DividedGpu(GPUS[0], PROFILES, ())
    reserved = [Place(GPUS[0], 9, 0, 4)]
    found = choose(hardware("30GiB"), [divided], reserved, [])
    assert found is not None
    assert found.place == Place(GPUS[0], 9, 4, 4)


REQUESTS = st.builds(
    hardware,
    st.sampled_from(["1GiB", "12GiB", "30GiB", "25%", None]),
    st.sampled_from([0, 20, 50]),
    st.sampled_from([None, *GPUS]),
)


class Crashing(RuleBasedStateMachine):
    """Requests come and go and are killed between any two steps; others make instances too."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Path(tempfile.mkdtemp(prefix="aq-")))
        self.theirs: set[Place] = set()

    def teardown(self) -> None:
        self.everything_ends()
        shutil.rmtree(self.world.folder, ignore_errors=True)

    @rule(request=REQUESTS, steps=st.one_of(st.none(), st.integers(0, 9)), adopts=st.booleans())
    def start(self, request: Request, steps: int | None, *, adopts: bool) -> None:
        self.world.gpus.until_crash = steps
        try:
            self.world.start(request, adopts=adopts)
        except (CrashError, NoCapacityError):
            pass
        finally:
            self.world.gpus.until_crash = None

    @rule(steps=st.integers(0, 9), data=st.data())
    def crash_while_cleaning(self, steps: int, data: st.DataObject) -> None:
        if self.world.granted:
            self.world.end(data.draw(st.sampled_from(sorted(self.world.granted))))
        self.world.gpus.until_crash = steps
        try:
            self.world.own().clean()
        except CrashError:
            pass
        finally:
            self.world.gpus.until_crash = None

    @rule(profile=st.sampled_from(PROFILES), gpu=st.sampled_from(GPUS), data=st.data())
    def somebody_else_makes_one(self, profile: Profile, gpu: str, data: st.DataObject) -> None:
        place = Place(gpu, profile.id, data.draw(st.sampled_from(profile.starts)), profile.size)
        known = [*self.world.gpus.there, *self.world.entries()]
        if not any(place.overlaps(other) for other in known):
            self.world.gpus.make(place)
            self.world.gpus.divide(place)
            self.theirs.add(place)

    @rule()
    def somebody_else_destroys_theirs(self) -> None:
        used = set(self.world.granted.values())
        for place in sorted(self.theirs, key=str):
            if self.world.gpus.there[place] not in used:
                self.world.gpus.undivide(place)
                self.world.gpus.destroy(place)
                self.theirs.discard(place)
                return

    @rule()
    def everything_ends(self) -> None:
        """When all have ended, one look leaves what others have made, and nothing else."""
        for pid in list(self.world.granted):
            self.world.end(pid)
        self.world.own().clean()
        assert set(self.world.gpus.there) == self.theirs
        assert self.world.entries() == []

    @invariant()
    def no_places_overlap(self) -> None:
        places = self.world.entries()
        assert not any(a.overlaps(b) for a, b in itertools.combinations(places, 2))

    @invariant()
    def each_instance_is_reserved_or_somebody_elses(self) -> None:
        assert set(self.world.gpus.there) <= {*self.world.entries(), *self.theirs}

    @invariant()
    def no_device_has_two_grants_and_each_exists(self) -> None:
        devices = list(self.world.granted.values())
        assert len(devices) == len(set(devices))
        assert set(devices) <= set(self.world.gpus.there.values())


TestCrashing = Crashing.TestCase
TestCrashing.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_an_entry_of_a_granted_instance_is_lost_when_nothing_uses_it(world: World) -> None:
    pid = world.start(hardware("4GiB"))
    del world.granted[pid]  # the grant has ended, and the process lives on, as a notebook does
    assert pid in world.alive
    world.own().clean()
    assert world.gpus.there == {}
