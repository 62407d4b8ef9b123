from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.devices import elf
from aliquot.model.errors import InstallationError
from aliquot.slices.stand_in_symbols import fit_symbols, sysv_hash
from slices.stand_ins import (
    NAMES,
    SPARES,
    build_driver,
    build_stand_in,
    driver_with,
    look_up,
    spare,
)

# Prints the answer of each function named on the command line, and the first spare's name.
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.name_of_spare.restype = ctypes.c_char_p
answers = [getattr(library, name)() if hasattr(library, name) else None for name in sys.argv[2:]]
print(answers, library.name_of_spare(0).decode(), library.name_of_spare(1).decode())
"""


@pytest.fixture(scope="session")
def stand_in_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="session")
def stand_in(stand_in_file: Path) -> bytes:
    return stand_in_file.read_bytes()


@pytest.fixture(scope="session", params=["gcc", "aarch64-linux-gnu-gcc"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The stand-in of each machine."""
    return build_stand_in(tmp_path_factory.mktemp("stand-in"), request.param).read_bytes()


def ask(library: Path, *names: str) -> str:
    command = [sys.executable, "-c", ASK, str(library), *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_fitting_stand_in_is_unchanged(either: bytes) -> None:
    fitted = fit_symbols(either, driver_with(*NAMES))
    assert fitted.data is None
    assert fitted.added == fitted.hidden == fitted.missing == ()


def test_new_symbols_replace_spares(either: bytes) -> None:
    fitted = fit_symbols(either, driver_with(*NAMES, "cuNew", "cuNewer_v3"))
    assert fitted.data is not None
    assert fitted.added == ("cuNew", "cuNewer_v3")
    assert look_up(fitted.data, "cuNew") == look_up(either, spare(0))
    assert look_up(fitted.data, "cuNewer_v3") == look_up(either, spare(1))
    assert look_up(fitted.data, spare(0)) is None
    assert look_up(fitted.data, spare(2)) == look_up(either, spare(2))


def test_symbols_that_the_driver_lacks_are_hidden(either: bytes) -> None:
    fitted = fit_symbols(either, driver_with("cuAlpha", "cuBeta"))
    assert fitted.data is not None
    assert fitted.hidden == ("cuBeta_v2", "cuGamma", "nvmlDelta")
    for name in fitted.hidden:
        assert look_up(fitted.data, name) is None
    for name in ("cuAlpha", "cuBeta", "dlopen_like", "aliquot_absent"):
        assert look_up(fitted.data, name) is not None


def test_symbols_without_a_driver_prefix_are_never_hidden(stand_in: bytes) -> None:
    fitted = fit_symbols(stand_in, driver_with())
    assert "dlopen_like" not in fitted.hidden
    assert fitted.data is not None
    assert look_up(fitted.data, "dlopen_like") is not None


def test_variables_are_neither_added_nor_hidden(stand_in: bytes) -> None:
    fitted = fit_symbols(stand_in, driver_with(*NAMES[1:], objects=("cuAlpha", "cudbgFlag")))
    assert fitted.data is None


def test_symbols_without_a_spare_are_reported(stand_in: bytes) -> None:
    new = [f"cuNew{number:02}" for number in range(SPARES + 2)]
    fitted = fit_symbols(stand_in, driver_with(*NAMES, *new, "cu" + "L" * 62))
    assert fitted.added == tuple(new[:SPARES])
    assert fitted.missing == ("cu" + "L" * 62, *new[SPARES:])


def test_a_symbol_as_long_as_a_spare_fits(stand_in: bytes) -> None:
    long = "cu" + "L" * 61
    fitted = fit_symbols(stand_in, driver_with(*NAMES, long))
    assert fitted.data is not None
    assert look_up(fitted.data, long) is not None


def test_the_dynamic_linker_finds_the_symbols(stand_in: bytes, tmp_path: Path) -> None:
    driver = elf.read_file(build_driver(tmp_path, "cuAlpha", "cuBeta", "cuNew"))
    library = tmp_path / "fitted.so"
    library.write_bytes(fit_symbols(stand_in, driver).data or b"")
    answers = ask(library, "cuAlpha", "cuBeta", "cuGamma", "cuBeta_v2", "cuNew", "dlopen_like")
    assert answers == f"[0, 1, None, None, 100, 5] cuNew {spare(1)}"


def test_fitting_twice_changes_nothing(stand_in: bytes) -> None:
    driver = driver_with("cuAlpha", "cuNew", "dlopen_like")
    once = fit_symbols(stand_in, driver).data
    assert once is not None
    assert fit_symbols(once, driver).data is None


def test_a_stand_in_with_a_gnu_hash_is_refused(tmp_path: Path) -> None:
    wrong = build_stand_in(tmp_path, "gcc", "-Wl,--hash-style=both").read_bytes()
    with pytest.raises(InstallationError, match="hash-style"):
        fit_symbols(wrong, driver_with("cuNew"))


NEW_NAMES = st.sets(st.from_regex(r"(cu|nvml)[A-Za-z0-9_]{1,58}", fullmatch=True), max_size=SPARES)


@given(st.sets(st.sampled_from(NAMES)), NEW_NAMES)
def test_exactly_the_drivers_symbols_can_be_found(
    stand_in_file: Path, kept: set[str], new: set[str]
) -> None:
    stand_in = stand_in_file.read_bytes()
    fitted = fit_symbols(stand_in, driver_with(*kept, *new))
    data = fitted.data or stand_in
    assert fitted.missing == ()
    for name in kept | new:
        assert look_up(data, name) is not None
    for name in set(NAMES) - kept - new - {"dlopen_like"}:
        assert look_up(data, name) is None
    addresses = [look_up(data, name) for name in new - set(NAMES)]
    assert len(set(addresses)) == len(addresses)
    assert len(data) == len(stand_in)


@pytest.mark.parametrize(("name", "value"), [("", 0), ("printf", 0x077905A6), ("exit", 0x6CF04)])
def test_the_hash_matches_the_abi(name: str, value: int) -> None:
    assert sysv_hash(name) == value


@given(st.binary(max_size=200), st.integers(0, 4000))
def test_a_damaged_library_is_an_elf_error(stand_in_file: Path, noise: bytes, at: int) -> None:
    stand_in = stand_in_file.read_bytes()
    damaged = stand_in[:at] + noise + stand_in[at + len(noise) :]
    try:
        elf.read(damaged)
        elf.read(damaged[:at])
    except elf.ElfError:
        pass


def test_system_libraries_are_read_like_the_linker_does() -> None:
    maps = Path("/proc/self/maps").read_text("ascii").splitlines()
    libc = next(line.split()[-1] for line in maps if "libc.so.6" in line)
    exported = elf.read_file(Path(libc)).functions()
    assert {"malloc", "printf", "getenv"} <= exported
