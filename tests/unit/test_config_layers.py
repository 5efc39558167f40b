"""Where a setting comes from: flag over environment over torpor.toml here over that of the home over default."""

from __future__ import annotations

import json

import pytest

from torpor.apps.cli.amounts import duration_or_never_s, duration_s, size_bytes
from torpor.apps.config import DEFAULT_CACHE_BYTES, Config, client_key
from torpor.apps.settings import Source
from torpor.domain.errors import InvalidArgument, Unauthenticated

KEY = "a-key-of-more-than-20-characters"


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A project's folder, which is the current one, and a home."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.chdir(project)
    return project, home


def test_each_layer_wins_over_those_below(places):
    project, home = places
    environment = {"TORPOR_HOME": str(home)}
    assert Config.read(environment).port == 7780
    (home / "torpor.toml").write_text("port = 1\nwarm_bytes = 5\n")
    assert (Config.read(environment).port, Config.read(environment).warm_bytes) == (1, 5)
    (project / "torpor.toml").write_text("port = 2\n")
    assert (Config.read(environment).port, Config.read(environment).warm_bytes) == (2, 5)
    assert Config.read({**environment, "TORPOR_PORT": "3"}).port == 3
    url = "http://127.0.0.1:4"
    assert Config.read({**environment, "TORPOR_API_URL": "http://x:5"}, api_url=url).api_url == url
    settings = Config.settings({**environment, "TORPOR_API_URL": "http://x:5"}, {"api_url": url})
    assert {one.setting.name: (one.source, one.place) for one in settings} == {
        "home": (Source.ENVIRONMENT, "TORPOR_HOME"),
        "api_url": (Source.FLAG, "--api-url"),
        "api_key": (Source.DEFAULT, ""),
        "host": (Source.DEFAULT, ""),
        "port": (Source.PROJECT, str(project / "torpor.toml")),
        "store_url": (Source.DEFAULT, ""),
        "keys_dir": (Source.DEFAULT, ""),
        "cache_bytes": (Source.DEFAULT, ""),
        "warm_bytes": (Source.HOME, str(home / "torpor.toml")),
        "clone_bytes": (Source.DEFAULT, ""),
    }


def test_a_project_may_say_where_the_home_is(places):
    project, home = places
    (project / "torpor.toml").write_text(f'home = "{home}"\n')
    assert Config.read({}).home == home


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("prot = 1", "prot"),
        ("api_key = 'a-key-of-more-than-20-characters'", "api_key"),
        ("home = '/x'", "home"),
        ("port = true", "port"),
        ("port = 1.5", "port"),
        ("host = ''", "host"),
        ("host = [1]", "host"),
        ("port = 65536", "port"),
        ("cache_bytes = 'much'", "cache_bytes"),
        ("port = ", "torpor.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_setting(places, text, field):
    _, home = places
    path = home / "torpor.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        Config.read({"TORPOR_HOME": str(home)})
    assert raised.value.details["field"] == field
    assert str(path) in raised.value.message


def test_a_wrong_variable_is_named():
    with pytest.raises(InvalidArgument, match="TORPOR_CACHE_BYTES") as raised:
        Config.read({"TORPOR_CACHE_BYTES": "1GB"})
    assert raised.value.details == {"field": "cache_bytes", "place": "TORPOR_CACHE_BYTES"}
    assert Config.read({}).cache_bytes == DEFAULT_CACHE_BYTES


def test_a_key_is_not_sent_to_a_server_that_a_projects_file_names(places):
    project, home = places
    (project / "torpor.toml").write_text('api_url = "http://198.51.100.7:7780"\n')
    environment = {"TORPOR_HOME": str(home), "TORPOR_API_KEY": KEY}
    with pytest.raises(Unauthenticated, match="TORPOR_API_URL"):
        client_key(Config.read(environment))
    chosen = {**environment, "TORPOR_API_URL": "http://198.51.100.7:7780"}
    assert client_key(Config.read(chosen)) == KEY
    (project / "torpor.toml").write_text('api_url = "http://127.0.0.1:7780"\n')
    assert client_key(Config.read(environment)) == KEY


@pytest.mark.usefixtures("places")
def test_what_holds_is_shown_without_the_key(torpor, environment):
    said = torpor("config", "show", "--json")
    rows = {row["name"]: row for row in json.loads(said.stdout)}
    assert rows["api_url"] == {
        "name": "api_url",
        "value": environment["TORPOR_API_URL"],
        "source": "environment",
        "place": "TORPOR_API_URL",
    }
    assert (rows["api_key"]["value"], rows["port"]["source"]) == ("(set)", "default")
    assert KEY.encode() not in said.stdout + torpor("config", "show").stdout


# ---- amounts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1", 1), ("512MiB", 512 << 20), ("512M", 512 << 20), ("2GB", 2_000_000_000), ("1.5 KiB", 1536), ("7B", 7)],
)
def test_sizes_are_read_as_people_write_them(text, amount):
    assert size_bytes(text, field="memory") == amount


@pytest.mark.parametrize(
    ("text", "amount"), [("30", 30), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("7d", 604_800), ("250ms", 0.25)]
)
def test_durations_are_read_as_people_write_them(text, amount):
    assert duration_s(text, field="idle") == amount
    assert duration_or_never_s(text, field="idle") == amount


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "10 parsecs", "1e9", "never", "1h30m", "٣s"])
def test_what_is_no_amount_names_the_field(text):
    for read in (size_bytes, duration_s):
        with pytest.raises(InvalidArgument) as raised:
            read(text, field="idle")
        assert raised.value.details == {"field": "idle"}
    assert duration_or_never_s("never", field="idle") is None


# ---- the commands that take them ------------------------------------------------------------------------------------


def test_a_session_is_created_with_its_clocks_and_set_anew(torpor, served):
    said = torpor("create", "--name", "one", "--idle", "10m", "--timeout", "2h", "--ttl", "never", "--retention", "90d")
    assert said.returncode == 0
    again = torpor("create", "--name", "one", "--get-or-create")
    assert again.stdout == said.stdout
    (session,) = served.backend.sessions.values()
    assert (session.policy.idle_s, session.policy.timeout_s, session.policy.retention_s) == (600, 7200, 90 * 86400)
    said = torpor("set", "one", "--idle", "never", "--timeout-action", "kill")
    assert b"pauses after for ever" not in said.stdout
    assert b"never pauses by itself" in said.stdout
    (session,) = served.backend.sessions.values()
    assert (session.policy.idle_s, session.policy.timeout_s, session.policy.timeout_action) == (None, 7200, "kill")
    for arguments in (("set", "one", "--idle", "soon"), ("set", "one"), ("create", "--memory", "lots")):
        assert torpor(*arguments).returncode == 2, arguments


def test_a_command_runs_in_a_session_of_its_own(torpor, served):
    said = torpor("run", "data", "--", "sh", "-c", "cat; exit 7", stdin=b"in")
    assert (said.returncode, said.stdout) == (7, b"in")
    assert served.backend.sessions == {}
    assert torpor("run", "data", "--keep", "--", "true").returncode == 0
    assert len(served.backend.sessions) == 1


def test_a_session_is_forked_and_snapshots_are_taken(torpor, served):
    torpor("create", "--name", "one")
    said = torpor("fork", "one", "-n", "2")
    assert len(said.stdout.split()) == 2
    assert torpor("fork", "one", "--name", "left", "--name", "right").returncode == 0
    assert {session.name for session in served.backend.sessions.values()} == {"one", None, "left", "right"}
    assert b"has snapshot" in torpor("snapshot", "one").stdout
    assert torpor("fork", "nobody").returncode == 3
