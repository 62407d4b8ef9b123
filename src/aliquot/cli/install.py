"""`aliquot install` and `aliquot uninstall`: one arbiter and one pool for all users of a machine.

Root must never run code that another user can write. So `install` copies Aliquot with the packages
it needs into releases of their own, PREFIX/releases/DIGEST, of files that belong to root; units and
commands run PREFIX/current, isolated from the environment (`python -I`). It refuses a prefix whose
folders others can write, a source that others can write, and a Python that not everybody can run.
"""

from __future__ import annotations

import grp
import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aliquot
from aliquot.devices import native_dir
from aliquot.model import format_count
from aliquot.model.errors import InstallationError
from aliquot.pool import pool_cgroup
from aliquot.slices import control, state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

GROUP = "aliquot-admin"
PREFIX = Path("/opt/aliquot")
UNITS = ("aliquot-arbiter.service", "aliquot-pool.service")
LINK = Path("usr/local/bin/aliquot")
PAM = Path("etc/pam.d/aliquot")
SETTINGS = Path("etc/aliquot/pool.toml")

_SYSTEMD = Path("/run/systemd/system")
_SUBGROUP_SYSTEMD = 254  # the first version that knows DelegateSubgroup=
_UNIT = """\
[Unit]
Description={description}
After=local-fs.target{after}
StartLimitIntervalSec=0

[Service]
ExecStart={command}
Restart=always
RestartSec=100ms
# Programs go on when the service stops, and the next start finds them again.
KillMode=process
{more}
[Install]
WantedBy=multi-user.target
"""
_LAUNCHER = "#!{python} -I\nfrom aliquot.cli import main\n\nmain()\n"
_OTHER_EXTRA = re.compile(r"extra == (?!.console)")
_PACKAGE_FILES = {".py", ".pyi", ".typed", ".toml", ".proto", ".html", ".js", ".css", ".svg"}


@dataclass(frozen=True, slots=True)
class InstallTarget:
    """Where Aliquot is installed: `prefix` as programs will see it, below the folder `root`."""

    prefix: Path = PREFIX
    root: Path = Path("/")

    def at(self, path: Path) -> Path:
        """Where a path of the machine lies now."""
        return self.root / path.relative_to("/") if path.is_absolute() else self.root / path

    @property
    def here(self) -> bool:
        """Whether it is this machine, and not a folder of one that is being prepared."""
        return self.root == Path("/")

    @property
    def current(self) -> Path:
        """The release that programs use."""
        return self.prefix / "current"


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One change of the machine, and how it is told."""

    description: str
    apply: Callable[[], object]


def install(
    target: InstallTarget, python: Path | None, *, dry_run: bool, say: Callable[[str], None]
) -> None:
    """Install Aliquot for all users, or bring an installation up to date."""
    _check_root(dry_run=dry_run)
    _check_memory(target)
    interpreter = _interpreter(python)
    files = dict(_files())
    check_source(files.values(), trusted_uids())
    check_folders(target.at(target.prefix), target.root)
    _carry_out(_install_steps(target, interpreter, files), say, dry_run=dry_run)
    if not target.here or not _SYSTEMD.exists():
        say("systemd does not run here. Start the services by hand, as root:")
        for command in commands(target).values():
            say(f"  {command}")


def uninstall(target: InstallTarget, *, dry_run: bool, say: Callable[[str], None]) -> None:
    """Remove what `install` made, except settings, state and what running programs still use."""
    _check_root(dry_run=dry_run)
    _check_memory(target)
    _carry_out(_uninstall_steps(target), say, dry_run=dry_run)
    kept = [Path("/etc/aliquot"), Path("/var/lib/aliquot"), *_used(target)]
    for path in (one for one in kept if target.at(one).exists()):
        say(f"left: {path}")
    if _has_group():
        say(f"left: the group {GROUP}")
    if running := _running(target):
        say(
            f"left running: pid {', '.join(map(str, running))}. {target.prefix} stays for them;"
            " when they have ended, remove it too."
        )


def _check_memory(target: InstallTarget) -> None:
    """Refuse to end an arbiter that holds memory of suspended programs: it would be lost."""
    if target.here:
        control.check_may_end(state_directory.SYSTEM)


def commands(target: InstallTarget) -> dict[str, str]:
    """The command of each unit."""
    start = _start(target)
    return {UNITS[0]: f"{start} arbiter --admission pool", UNITS[1]: f"{start} up --console off"}


def _start(target: InstallTarget) -> str:
    return f"{target.current}/bin/python -I -m aliquot"


def unit_texts(target: InstallTarget) -> dict[str, str]:
    """The files of both units."""
    told = commands(target)
    return {
        UNITS[0]: _UNIT.format(
            description="Aliquot's arbiter: shares of this machine's GPUs",
            after="",
            command=told[UNITS[0]],
            more="# A reboot ends the slices of containers. Nothing waits for them.\n"
            f"ExecStartPost=-{_start(target)} slice restore --arbiter-within 30\n",
        ),
        UNITS[1]: _UNIT.format(
            description="Aliquot's pool: the queue of jobs on this machine's GPUs",
            after=f"\nAfter={UNITS[0]}\nWants={UNITS[0]}",
            command=told[UNITS[1]],
            more=_delegation(),
        ),
    }


def _delegation() -> str:
    """What the unit of the pool says about cgroups. Without a subgroup the pool makes its own."""
    lines = "# The pool and each worker get a cgroup below the service's.\nDelegate=yes\n"
    known = _systemd_version() >= _SUBGROUP_SYSTEMD
    return f"{lines}DelegateSubgroup={pool_cgroup.NAME}\n" if known else lines


def _systemd_version() -> int:
    """The version of this machine's systemd; 0 if it has none."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return 0
    told = subprocess.run([systemctl, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"systemd (\d+)", told.stdout)
    return int(found[1]) if found else 0


def check_folders(path: Path, top: Path) -> None:
    """Raise InstallationError unless root alone can change what a path below `top` leads to."""
    inner = [path, *path.parents]
    for folder in reversed([one for one in inner if one == top or one.is_relative_to(top)]):
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(found.st_mode):
            raise InstallationError(f"{folder} is a link", "Name the folder itself with --prefix.")
        if found.st_uid != 0 or found.st_mode & 0o022:
            raise InstallationError(
                f"other users can write to {folder}",
                f"Fix it with: chown root {folder} && chmod go-w {folder}\n"
                "  Or choose another folder with --prefix.",
            )


def check_source(paths: Iterable[Path], trusted: frozenset[int]) -> None:
    """Raise InstallationError if another user than the trusted ones can write what is copied."""
    seen: set[Path] = set()
    for path in paths:
        for part in (path, *path.parents):
            if part in seen:
                break
            seen.add(part)
            found = part.stat()
            sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            by_group = found.st_mode & 0o020 and found.st_gid not in {0, *trusted}
            if found.st_uid not in trusted or ((found.st_mode & 0o002 or by_group) and not sticky):
                raise InstallationError(
                    f"other users can write to {part}, and root would run it",
                    f"Fix it with: chmod go-w {part}\n  Or install from a checkout of root's.",
                )


def trusted_uids() -> frozenset[int]:
    """Root, and the user who became root by sudo: their code runs as root already."""
    named = os.environ.get("SUDO_UID", "")
    return frozenset({0, int(named)} if named.isdecimal() else {0})


def _check_root(*, dry_run: bool) -> None:
    if os.geteuid() != 0 and not dry_run:
        raise InstallationError(
            "only root can install Aliquot for all users", "Use sudo, or see: --dry-run"
        )


def _interpreter(named: Path | None) -> Path:
    """A Python of this version that everybody can run and only root can change."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix) / "bin" / f"python{version}"
    for path in [named] if named else [base, Path(f"/usr/bin/python{version}")]:
        if path.exists() and _is_everyones(path.resolve()):
            return path
    raise InstallationError(
        f"no Python {version} was found that everybody can run and only root can change"
        + (f": {named} is none" if named else ""),
        f"Install python{version} with the system's packages, or name one with --python.",
    )


def _is_everyones(path: Path) -> bool:
    parts = [one.stat() for one in (path, *path.parents)]
    return all(one.st_uid == 0 and not one.st_mode & 0o022 and one.st_mode & 0o001 for one in parts)


def _files() -> Iterator[tuple[Path, Path]]:
    """Every file of a release, by its place among the packages."""
    for folder in map(Path, aliquot.__path__):
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix in _PACKAGE_FILES and "_native" not in path.parts:
                yield Path("aliquot") / path.relative_to(folder), path
    for path in native_dir().rglob("*"):
        if path.is_file():
            yield Path("aliquot/_native") / path.relative_to(native_dir()), path
    for package in _needed("aliquot"):
        for file in importlib.metadata.files(package) or []:
            path = Path(str(file.locate())).resolve()
            if ".." not in file.parts and path.is_file() and path.suffix != ".pyc":
                yield Path(*file.parts), path


def _needed(package: str) -> list[str]:
    """The packages that a package needs, the console's extra included, and all that those need."""
    found: dict[str, None] = {}
    waiting = [package]
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or []:
            name = re.match(r"[A-Za-z0-9._-]+", text)
            if name is None or _OTHER_EXTRA.search(text) or name[0] in found:
                continue
            try:
                importlib.metadata.distribution(name[0])
            except importlib.metadata.PackageNotFoundError:
                continue  # for another system or version
            found[name[0]] = None
            waiting.append(name[0])
    return list(found)


def _digest(files: Mapping[Path, Path], python: Path) -> str:
    digest = hashlib.sha256(os.fsencode(python))
    for place in sorted(files):
        digest.update(os.fsencode(place) + b"\0")
        digest.update(hashlib.sha256(files[place].read_bytes()).digest())
    return digest.hexdigest()[:12]


def _install_steps(
    target: InstallTarget, python: Path, files: Mapping[Path, Path]
) -> Iterator[InstallStep]:
    name, current = _digest(files, python), target.at(target.current)
    before = current.readlink().name if current.is_symlink() else name
    release = target.prefix / "releases" / name
    yield from _folder_steps(target)
    if target.here and not _has_group():
        yield _run("groupadd", "--system", GROUP)
    if not target.at(release).exists():
        yield InstallStep(
            f"copy {format_count(len(files), 'file')} to {release}",
            lambda: _copy_release(target, release, python, files),
        )
    yield from _link_step(target, target.current, Path("releases") / name)
    yield from _link_step(target, Path("/") / LINK, target.current / "bin" / "aliquot")
    yield from _settings_steps(target)
    for unit, text in unit_texts(target).items():
        yield from _file_step(target, Path("/etc/systemd/system") / unit, text, replace=True)
    if target.here and _SYSTEMD.exists():
        yield _run("systemctl", "daemon-reload")
        yield _run("systemctl", "enable", *UNITS)
        yield _run("systemctl", "restart", *UNITS)
    yield from _prune_steps(target, {name, before})


def _prune_steps(target: InstallTarget, kept: set[str]) -> Iterator[InstallStep]:
    """Remove all releases but two, the new one and the last, and those that programs use."""
    releases = target.at(target.prefix) / "releases"
    old = [one for one in releases.iterdir() if one.name not in kept] if releases.exists() else []
    old.sort(key=lambda one: one.stat().st_mtime)
    old = old[:-1] if len(kept) == 1 else old
    used = _mapped(releases) if old else ""
    for release in old:
        if f"{release}/" not in used:
            shown = target.prefix / "releases" / release.name
            yield InstallStep(f"remove {shown}", partial(shutil.rmtree, release))


def _mapped(folder: Path) -> str:
    """The files below a folder that processes run or have mapped."""
    start, found = f"{folder}/", set()
    for process in (one for one in Path("/proc").iterdir() if one.name.isdecimal()):
        try:
            maps = (process / "maps").read_text("utf-8", "replace")
        except OSError:  # it has ended
            continue
        found |= {start + line.partition(start)[2] for line in maps.splitlines() if start in line}
    return "\n".join(found)


def _folder_steps(target: InstallTarget) -> Iterator[InstallStep]:
    for folder in (target.prefix, target.prefix / "releases", "/var/lib/aliquot", "/etc/aliquot"):
        path = target.at(Path(folder))
        if not path.exists():
            yield InstallStep(f"make the folder {folder}", partial(_make_folder, path))


def _make_folder(path: Path) -> None:
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)


def _settings_steps(target: InstallTarget) -> Iterator[InstallStep]:
    for example in (Path(one) / "pool" / "pool.toml" for one in aliquot.__path__):
        if not example.is_file():
            continue
        yield from _file_step(target, Path("/") / SETTINGS, _commented_out(example))
    if target.at(PAM.parent).is_dir():
        yield from _file_step(target, Path("/") / PAM, _pam_text(target))


def _commented_out(example: Path) -> str:
    """An example file in which every setting is a comment: it changes nothing."""
    lines = example.read_text("utf-8").splitlines()
    return "".join(f"# {line}\n" if line and line[0] != "#" else f"{line}\n" for line in lines)


def _pam_text(target: InstallTarget) -> str:
    """The PAM service of workers: accounts as the machine has them, limits and umask."""
    if target.at(Path("etc/pam.d/common-account")).exists():
        account = "@include common-account"
    elif target.at(Path("etc/pam.d/system-auth")).exists():
        account = "account include system-auth"
    else:
        account = "account required pam_unix.so"
    return (
        "# Workers of Aliquot's pool run as the users of their jobs, with these limits.\n"
        f"auth required pam_permit.so\n{account}\n"
        "-session optional pam_loginuid.so\n"
        "session required pam_limits.so\nsession optional pam_umask.so\n"
    )


def _file_step(
    target: InstallTarget, path: Path, text: str, *, replace: bool = False
) -> Iterator[InstallStep]:
    place = target.at(path)
    if place.exists() and (not replace or place.read_text("utf-8") == text):
        return

    def write() -> None:
        _make_folder(place.parent)
        new = place.with_name(f".{place.name}.new")
        new.write_text(text, "utf-8")
        new.chmod(0o644)
        new.replace(place)

    yield InstallStep(f"write {path}", write)


def _link_step(target: InstallTarget, path: Path, to: Path) -> Iterator[InstallStep]:
    place = target.at(path)
    if place.is_symlink() and place.readlink() == to:
        return
    if place.exists() and not place.is_symlink():
        raise InstallationError(f"{path} exists and is no link", "Move it away.")

    def link() -> None:
        _make_folder(place.parent)
        new = place.with_name(f".{place.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(to)
        new.replace(place)

    yield InstallStep(f"link {path} to {to}", link)


def _copy_release(
    target: InstallTarget, release: Path, python: Path, files: Mapping[Path, Path]
) -> None:
    """Copy everything into a new folder, and give it its name when it is complete."""
    new = target.at(release).with_name(f".{release.name}.new")
    if new.exists():
        shutil.rmtree(new)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = new / "lib" / version / "site-packages"
    for place, source in files.items():
        copy = packages / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
        copy.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    (new / "bin").mkdir()
    for name in ("python", "python3", version):
        (new / "bin" / name).symlink_to(python)
    (new / "pyvenv.cfg").write_text(
        f"home = {python.resolve().parent}\ninclude-system-site-packages = false\n", "utf-8"
    )
    launcher = new / "bin" / "aliquot"
    launcher.write_text(_LAUNCHER.format(python=target.current / "bin" / "python"), "utf-8")
    launcher.chmod(0o755)
    for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    compile_all = [str(python), "-I", "-m", "compileall", "-q", str(packages)]
    subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)
    new.replace(target.at(release))


def _uninstall_steps(target: InstallTarget) -> Iterator[InstallStep]:
    units = [Path("/etc/systemd/system") / unit for unit in UNITS]
    if target.here and _SYSTEMD.exists() and any(target.at(one).exists() for one in units):
        yield _run("systemctl", "disable", "--now", *UNITS)
    for path in (*units, Path("/") / LINK, Path("/") / PAM):
        place = target.at(path)
        if place.is_symlink() or place.exists():
            yield InstallStep(f"remove {path}", place.unlink)
    if target.here and _SYSTEMD.exists():
        yield _run("systemctl", "daemon-reload")
    prefix = target.at(target.prefix)
    if (prefix / "releases").exists() and not _running(target):
        check_folders(prefix, target.root)
        yield InstallStep(f"remove {target.prefix}", lambda: shutil.rmtree(prefix))


def _running(target: InstallTarget) -> list[int]:
    """The processes that run from the prefix, except this one."""
    found = []
    start = os.fsencode(target.prefix) + b"/"
    for folder in Path("/proc").iterdir() if target.here else []:
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(start):
                found.append(int(folder.name))
    return sorted(found)


def _used(target: InstallTarget) -> list[Path]:
    return [target.prefix] if _running(target) else []


def _has_group() -> bool:
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        return False
    return True


def _run(*command: str) -> InstallStep:
    return InstallStep(f"run {shlex.join(command)}", lambda: _call(command))


_AGAIN = "Correct it, and run the same command again: steps that are done stay done."


def _call(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallationError(f"{command[0]} cannot be run: {error.strerror}", _AGAIN) from error
    if done.returncode:
        raise InstallationError(f"{shlex.join(command)} failed: {done.stderr.strip()}", _AGAIN)


def _carry_out(steps: Iterator[InstallStep], say: Callable[[str], None], *, dry_run: bool) -> None:
    done = 0
    for step in steps:
        say(f"would {step.description}" if dry_run else step.description)
        if not dry_run:
            try:
                step.apply()
            except OSError as error:
                raise InstallationError(
                    f"could not {step.description}: {error.strerror or error}", _AGAIN
                ) from error
        done += 1
    if not done:
        say("nothing to do")
