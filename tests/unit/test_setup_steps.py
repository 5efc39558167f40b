"""What the set-up decides to do, and that it does only that."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torpor_setup import steps
from torpor_setup.machine import lacking_packages, parsed_candidate
from torpor_setup.perform import StepFailed, run
from torpor_setup.places import Places
from torpor_setup.steps import Step, digest_files, project_tables, steps_for
from torpor_setup.undo import cgroups_of, processes_of

from torpor.apps.config import Config

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def places(tmp_path):
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).write_text((CHECKOUT / name).read_text())
    return Places(tmp_path)


def has_none(tool: str) -> None:
    """A machine without any tool."""
    del tool


def test_a_check_lacks_nothing_but_what_makes_the_environment():
    assert lacking_packages("check", which=has_none, venv_works=True, has_ensurepip=False).packages == ()
    (package,) = lacking_packages("check", which=has_none, venv_works=False, has_ensurepip=False).packages
    assert package.startswith("python3")
    assert package.endswith("-venv")


def test_the_engine_lacks_the_tools_that_are_not_on_path():
    lacking = lacking_packages("engine", which=has_none, venv_works=True, has_ensurepip=True)
    assert {"iproute2", "mmdebstrap"} <= set(lacking.packages)
    assert lacking.reasons["iproute2"] == "brings ip"
    nothing = lacking_packages("engine", which=lambda tool: f"/bin/{tool}", venv_works=True, has_ensurepip=True)
    assert set(nothing.packages) <= {"ca-certificates"}


def test_a_check_needs_the_environment_alone_and_the_engine_all_steps(places):
    assert [step.name for step in steps_for("check", places)] == ["packages", "venv"]
    assert [step.name for step in steps_for("engine", places)] == ["packages", "venv", "engine", "template"]


def test_every_step_says_what_it_changes_and_about_how_long_it_takes(places):
    for step in steps_for("engine", places):
        assert step.about_s > 0
        assert step.changes or step.name == "packages"


def test_a_step_is_done_only_with_its_inputs_and_while_its_result_is_there(tmp_path):
    result = tmp_path / "result"

    def step(key: str) -> Step:
        return Step("x", "a file", 1, key, is_there=result.exists, perform=lambda: None)

    assert not step("1").is_done(tmp_path)
    result.touch()
    step("1").stamp(tmp_path)
    assert step("1").is_done(tmp_path)
    assert not step("2").is_done(tmp_path)
    result.unlink()
    assert not step("1").is_done(tmp_path)


def test_a_new_lint_rule_installs_nothing_anew_but_a_new_dependency_does():
    first = project_tables('[project]\nname="x"\ndependencies=[]\n[tool.ruff]\nline-length=1\n')
    assert first == project_tables('[project]\nname="x"\ndependencies=[]\n[tool.ruff]\nline-length=2\n')
    assert first != project_tables('[project]\nname="x"\ndependencies=["y"]\n')


def test_the_digest_of_inputs_sees_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    paths = [tmp_path / "b", tmp_path / "a"]
    first = digest_files(paths, root=tmp_path)
    assert digest_files(reversed(paths), root=tmp_path) == first
    (tmp_path / "a").write_text("3")
    assert digest_files(paths, root=tmp_path) != first


def test_an_engine_build_is_shared_once_and_never_half(tmp_path):
    source, target = tmp_path / "from", tmp_path / "to"
    (source / "build").mkdir(parents=True)
    (source / "build/runsc").write_text("binary")
    (source / "half").mkdir()
    (target / ".build.part").mkdir(parents=True)
    steps._share(source, target)
    assert sorted(entry.name for entry in target.iterdir()) == ["build"]
    (target / "build/runsc").write_text("as it was")
    steps._share(source, target)
    assert (target / "build/runsc").read_text() == "as it was"


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        ("golang-go:\n  Installed: (none)\n  Candidate: 2:1.24~2\n  Version table:\n     2:1.24~2 500\n", (1, 24)),
        ("golang-go:\n  Installed: 2:1.19~1\n  Candidate: 2:1.19~1\n", (1, 19)),
        ("golang-go:\n  Installed: (none)\n  Candidate: (none)\n", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_version_that_apt_would_install_is_read(policy, version):
    assert parsed_candidate(policy) == version


@pytest.fixture
def closed_routes(monkeypatch):
    """An engine step of which the first install fails; what is run, in order."""
    ran = []

    def run(argv, **_more):
        ran.append(" ".join(map(str, argv[1:])))
        if len(ran) == 1:
            raise StepFailed("no route worked", remedy="any")

    monkeypatch.setattr(steps, "run", run)
    monkeypatch.setattr(steps, "_share", lambda *_: None)
    monkeypatch.setattr(steps, "_install", lambda names, _places: ran.append(f"apt {names[0]}"))
    monkeypatch.setattr(steps.machine, "is_root", lambda: True)
    monkeypatch.setattr(steps.shutil, "which", has_none)
    return ran


def test_where_every_route_is_closed_the_distributions_compiler_opens_one(places, closed_routes, monkeypatch):
    monkeypatch.setattr(steps.machine, "candidate_version", lambda _name: (1, 24))
    steps_for("engine", places)[2].perform()
    assert closed_routes == ["engine install gvisor", "apt golang-go", "engine install gvisor"]


def test_a_compiler_that_is_too_old_is_not_installed(places, closed_routes, monkeypatch):
    monkeypatch.setattr(steps.machine, "candidate_version", lambda _name: (1, 19))
    with pytest.raises(StepFailed, match="no route worked"):
        steps_for("engine", places)[2].perform()
    assert closed_routes == ["engine install gvisor"]


def test_the_runtime_folder_is_named_as_the_server_names_it(places):
    served = Config.read({"TORPOR_HOME": str(places.home)}).runtime_dir
    assert served.name == places.home_id


def test_a_failing_command_says_what_the_remedy_is_and_shows_its_end(tmp_path):
    with pytest.raises(StepFailed) as failed:
        run([sys.executable, "-c", "print('the end'); raise SystemExit(3)"], log=tmp_path / "log", remedy="try again")
    assert (failed.value.remedy, failed.value.tail) == ("try again", "the end")
    assert "ended with 3" in str(failed.value)
    assert "the end" in (tmp_path / "log").read_text()


def test_a_command_that_is_not_there_is_a_failed_step(tmp_path):
    with pytest.raises(StepFailed, match="cannot start no-such-program"):
        run(["no-such-program"], log=tmp_path / "log", remedy="install it")


def test_undo_finds_only_processes_of_this_checkouts_builds(places):
    ours = places.home / "engines/build/runsc"
    ours.parent.mkdir(parents=True)
    ours.write_bytes(Path("/bin/sleep").read_bytes())
    ours.chmod(0o755)
    children = [subprocess.Popen([program, "60"]) for program in (ours, "/bin/sleep")]
    try:
        while not Path(f"/proc/{children[0].pid}/exe").exists() or children[0].pid not in processes_of(places):
            assert children[0].poll() is None
            time.sleep(0.01)  # noqa: TID251 - the child is about to become the copied program
        assert processes_of(places) == [children[0].pid]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_undo_finds_this_homes_cgroups_of_either_version(tmp_path):
    for folder in ("torpor/h1", "memory/torpor/h1", "memory/torpor/h2", "cpu/other"):
        (tmp_path / folder).mkdir(parents=True)
    found = [str(path.relative_to(tmp_path)) for path in cgroups_of("h1", mount=tmp_path)]
    assert found == ["memory/torpor/h1", "torpor/h1"]


def test_what_was_installed_is_added_to_what_was_before(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "MACHINE_RECORD", tmp_path / "lib/setup.json")
    steps._record_packages(["b", "a"])
    steps._record_packages(["c"])
    assert json.loads((tmp_path / "lib/setup.json").read_text()) == {"packages": ["a", "b", "c"]}


def test_a_wrong_goal_is_answered_with_the_goals():
    ended = subprocess.run(
        [sys.executable, CHECKOUT / "setup/run.py", "nonsense"], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "say one of check, engine, undo" in ended.stdout
