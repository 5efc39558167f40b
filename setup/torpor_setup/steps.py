"""The steps, in order. Each says what it changes, how long it takes, and on which inputs it depends."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor_setup import machine
from torpor_setup.perform import StepFailed, run
from torpor_setup.places import MACHINE_CACHE, MACHINE_RECORD, Places

GOALS = ("check", "engine")
TEMPLATES = ("base", "data")
GO_VERSION_MIN = (1, 21)  # from here on it fetches the toolchain that a module asks for


@dataclass(frozen=True)
class Step:
    """``key``: digest of the inputs. ``is_there``: a quick look at the result. ``perform``: do it; may be repeated."""

    name: str
    changes: str
    about_s: int
    key: str
    is_there: Callable[[], bool]
    perform: Callable[[], None]

    def is_done(self, stamps: Path) -> bool:
        """True if it was done with these inputs and its result is still there."""
        stamp = stamps / self.name
        return stamp.is_file() and stamp.read_text() == self.key and self.is_there()

    def stamp(self, stamps: Path) -> None:
        """Note that it was done."""
        stamps.mkdir(parents=True, exist_ok=True)
        part = stamps / f".{self.name}.part"
        part.write_text(self.key)
        part.replace(stamps / self.name)


def steps_for(goal: str, places: Places) -> list[Step]:
    """What ``goal`` needs: ``check`` the virtual environment alone, ``engine`` all of it."""
    assert goal in GOALS, goal
    steps = [_packages(goal, places), _venv(places)]
    if goal == "engine":
        steps += [_engine(places), _template(places)]
    return steps


def digest_files(paths: Iterable[Path], *, root: Path, salt: str = "") -> str:
    """One digest of names and contents, in the order of the names."""
    whole = hashlib.sha256(salt.encode())
    for path in sorted(paths):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(root)}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()


def project_tables(pyproject: str) -> str:
    """Of pyproject.toml what an installation depends on, so that a new lint rule installs nothing anew."""
    tables = tomllib.loads(pyproject)
    return json.dumps({"project": tables.get("project"), "build": tables.get("build-system")}, sort_keys=True)


def installing_environment() -> dict[str, str]:
    """The environment as it is (indexes, proxies, certificates) but for what would change how packages are built."""
    return {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME", "MAKEFLAGS"}}


def _packages(goal: str, places: Places) -> Step:
    lacking = machine.lacking_packages(
        goal, venv_works=machine.venv_works(places.venv_python), has_ensurepip=machine.has_ensurepip()
    )
    names = lacking.packages

    def perform() -> None:
        if names:
            _install(names, places)

    listed = "; ".join(f"{name} ({lacking.reasons[name]})" for name in names)
    return Step(
        name="packages",
        changes=f"system packages by apt: {listed}" if names else "",
        about_s=5 + 10 * len(names),
        key=goal,
        is_there=lambda: not names,
        perform=perform,
    )


def _install(names: tuple[str, ...], places: Places) -> None:
    """Install packages by apt, and note which came with it."""
    command = f"apt-get install {' '.join(names)}"
    if not machine.is_root():
        raise StepFailed(f"system packages are lacking: {', '.join(names)}", remedy=f"as root, run {command}")
    log = places.logs / "packages.log"
    environment = installing_environment() | {"DEBIAN_FRONTEND": "noninteractive"}
    if not machine.has_package_lists(names):
        run(
            ["apt-get", "update"],
            log=log,
            env=environment,
            remedy="check the network and the files in /etc/apt, until apt-get update works",
        )
    before = machine.installed_packages()
    run(
        ["apt-get", "install", "--yes", "--no-install-recommends", *names],
        log=log,
        env=environment,
        remedy=f"run {command} by hand and see what apt says; another apt may be running",
    )
    _record_packages(sorted(machine.installed_packages() - before))


def _record_packages(added: list[str]) -> None:
    """Remember what was installed, so that ``make undo PACKAGES=1`` can name and remove exactly that."""
    known: list[str] = []
    if MACHINE_RECORD.is_file():
        known = json.loads(MACHINE_RECORD.read_text())["packages"]
    MACHINE_RECORD.parent.mkdir(parents=True, exist_ok=True)
    part = MACHINE_RECORD.with_suffix(".part")
    part.write_text(json.dumps({"packages": sorted({*known, *added})}, indent=1) + "\n")
    part.replace(MACHINE_RECORD)


def _venv(places: Places) -> Step:
    lock, pyproject = places.checkout / "requirements.lock", places.checkout / "pyproject.toml"
    salt = f"{project_tables(pyproject.read_text())} {places.checkout}"

    def perform() -> None:
        log = places.logs / "venv.log"
        environment = installing_environment()
        if not machine.venv_works(places.venv_python):
            run(
                [sys.executable, "-m", "venv", "--clear", places.venv],
                log=log,
                env=environment,
                remedy="remove .venv and repeat; on Debian and Ubuntu the package python3-venv is needed",
            )
        pip = [places.venv_python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        remedy = "check that pip reaches its index (pip config list; proxies in the environment), then repeat"
        run([*pip, "--require-hashes", "--requirement", lock], log=log, env=environment, remedy=remedy)
        run(
            [*pip, "--no-deps", "--no-build-isolation", "--editable", places.checkout],
            log=log,
            env=environment,
            remedy="see the log; pyproject.toml may not parse",
        )

    return Step(
        name="venv",
        changes="a virtual environment in .venv from requirements.lock, about 400 MB",
        about_s=60,
        key=digest_files([lock], root=places.checkout, salt=salt),
        is_there=lambda: places.venv_python.exists() and places.torpor.exists(),
        perform=perform,
    )


def _engine(places: Places) -> Step:
    source = places.checkout / "src/torpor/adapters/engines/gvisor"
    engines = places.home / "engines"

    def install() -> None:
        run(
            [places.torpor, "engine", "install", "gvisor"],
            log=places.logs / "engine.log",
            env=torpor_environment(places),
            remedy="see what each route said above; any one is enough: Go 1.21 or newer, the official release, "
            "a runsc on PATH, or apt-get install runsc",
        )

    def perform() -> None:
        engines.mkdir(parents=True, exist_ok=True)
        _share(MACHINE_CACHE / "engines", engines)
        try:
            install()
        except StepFailed:
            # Every route is closed, but the distribution may have the compiler that one of them lacks.
            if shutil.which("go") or not machine.is_root() or machine.candidate_version("golang-go") < GO_VERSION_MIN:
                raise
            print("      no route worked; installing golang-go for one of them", flush=True)
            _install(("golang-go",), places)
            install()
        _share(engines, MACHINE_CACHE / "engines")

    return Step(
        name="engine",
        changes="a gVisor build (runsc) in .cache/home/engines, with its self-test",
        about_s=180,
        key=digest_files(source.rglob("*.py"), root=places.checkout),
        is_there=lambda: any(engines.glob("*/runsc")),
        perform=perform,
    )


def _template(places: Places) -> Step:
    source = places.checkout / "src"
    inputs = [
        *(source / "torpor/adapters/templates").rglob("*.py"),
        *(source / "torpor_guest").rglob("*.py"),
        *(source / "torpor_wire").rglob("*.py"),
        *(source / "torpor/store/format").rglob("*.py"),
    ]
    templates = places.home / "templates"

    def perform() -> None:
        for template in TEMPLATES:  # the second stands on the layer of the first
            run(
                [places.torpor, "template", "build", template],
                log=places.logs / "template.log",
                env=torpor_environment(places),
                remedy="see the log; it needs root, mmdebstrap, a working apt-get update and pip index, and about 3 GB "
                "of disk",
            )

    engine_key = _engine(places).key
    return Step(
        name="template",
        changes=f"the templates {' and '.join(TEMPLATES)} from this machine's apt sources and pip index in "
        ".cache/home/templates, about 700 MB (their layers are kept in /var/cache/torpor for other checkouts, 500 MB), "
        "and their golden snapshots",
        about_s=200,
        key=digest_files(inputs, root=places.checkout, salt=engine_key),
        is_there=lambda: any(templates.glob("*/rootfs/usr/bin/python3*")),
        perform=perform,
    )


def torpor_environment(places: Places) -> dict[str, str]:
    """The environment of a ``torpor`` command of the set-up: this checkout's home, and no other server's address."""
    environment = installing_environment() | {"TORPOR_HOME": str(places.home)}
    for name in ("TORPOR_API_URL", "TORPOR_API_KEY"):
        environment.pop(name, None)
    environment["PATH"] = (
        f"{environment.get('PATH', '/usr/bin:/bin')}:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin"
    )
    return environment


def _share(source: Path, target: Path) -> None:
    """Copy engine builds that ``target`` lacks. A build is immutable and named by its content's digest."""
    if not source.is_dir():
        return
    target.mkdir(parents=True, exist_ok=True, mode=0o755)
    for build in sorted(source.iterdir()):
        if build.name.startswith(".") or not (build / "runsc").is_file() or (target / build.name).exists():
            continue
        part = target / f".{build.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(["cp", "--archive", "--reflink=auto", str(build), str(part)], check=True)
        part.rename(target / build.name)


def link_for_tests(places: Places) -> None:
    """``.cache/engines`` and ``.cache/templates``, where tests look, point into the home of development."""
    for name in ("engines", "templates"):
        (places.home / name).mkdir(parents=True, exist_ok=True)
        link = places.cache / name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(Path("home") / name)
