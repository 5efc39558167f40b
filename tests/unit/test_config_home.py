"""Settings: which source wins, where files lie, and to whom a key is given."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from torpor.apps.config import Config, check_bind, client_key, is_loopback, server_key
from torpor.domain.errors import InvalidArgument, Unauthenticated

KEY = "a-key-of-more-than-20-characters"
FRESH = bytes(range(32))


def test_a_flag_wins_over_the_environment_and_that_over_the_default(tmp_path):
    environment = {"TORPOR_HOME": str(tmp_path / "env"), "TORPOR_API_URL": "http://127.0.0.1:1"}
    assert Config.read({}).home == Path("~/.torpor").expanduser().resolve()
    assert Config.read(environment).home == tmp_path / "env"
    assert Config.read(environment, home=str(tmp_path / "flag")).home == tmp_path / "flag"
    assert Config.read(environment).api_url == "http://127.0.0.1:1"
    assert Config.read(environment, api_url="http://127.0.0.1:2/").api_url == "http://127.0.0.1:2"


def test_an_unset_url_is_that_of_the_homes_server_else_the_default(tmp_path):
    environment = {"TORPOR_HOME": str(tmp_path)}
    assert Config.read(environment).api_url == "http://127.0.0.1:7780"
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:9000"}))
    assert Config.read(environment).api_url == "http://127.0.0.1:9000"
    (tmp_path / "server.json").write_text('{"url": "http')
    assert Config.read(environment).api_url == "http://127.0.0.1:7780"


@pytest.mark.parametrize("url", ["ftp://here", "here:7780", "http://", "127.0.0.1"])
def test_a_url_that_is_none_is_refused(tmp_path, url):
    with pytest.raises(InvalidArgument) as refused:
        Config.read({"TORPOR_HOME": str(tmp_path), "TORPOR_API_URL": url})
    assert refused.value.details == {"field": "api_url"}


@pytest.mark.parametrize("key", ["short", "with a space in the middle of it", "schlüssel-schlüssel-schlüssel"])
def test_a_key_that_could_be_guessed_or_not_be_sent_is_refused(tmp_path, key):
    with pytest.raises(InvalidArgument) as refused:
        Config.read({"TORPOR_HOME": str(tmp_path), "TORPOR_API_KEY": key})
    assert refused.value.details == {"field": "api_key"}
    assert key not in refused.value.message


def test_everything_of_a_home_lies_in_it_but_what_runs(tmp_path):
    config = Config(home=tmp_path, api_url="http://127.0.0.1:7780")
    names = ["key_file", "catalog_file", "store_dir", "keys_dir", "engines_dir", "templates_dir", "server_file",
             "lock_file", "log_file"]  # fmt: skip
    paths = [getattr(config, name) for name in names]
    assert {path.parent for path in paths} == {tmp_path}
    assert len(set(paths)) == len(names)
    assert config.runtime_dir.parent == Path("/run/torpor")
    assert config.runtime_dir != Config(home=tmp_path / "other", api_url=config.api_url).runtime_dir


def test_two_paths_to_one_home_run_in_one_place(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to("home")
    places = {Config(home=tmp_path / name, api_url="http://localhost").runtime_dir for name in ("home", "link")}
    assert len(places) == 1


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    config = Config(home=tmp_path, api_url="http://127.0.0.1:7780")
    key, was_known = server_key(config, fresh=FRESH)
    assert (key, was_known) == ("torpor_" + FRESH.hex(), False)
    assert stat.S_IMODE(config.key_file.stat().st_mode) == 0o600
    assert server_key(config, fresh=bytes(32)) == (key, True)
    assert client_key(config) == key


def test_a_key_file_that_others_may_read_is_refused_with_the_remedy(tmp_path):
    config = Config(home=tmp_path, api_url="http://127.0.0.1:7780")
    server_key(config, fresh=FRESH)
    config.key_file.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        server_key(config, fresh=FRESH)


def test_a_key_from_the_environment_leaves_no_file(tmp_path):
    config = Config(home=tmp_path, api_url="http://127.0.0.1:7780", api_key=KEY)
    assert server_key(config, fresh=FRESH) == (KEY, True)
    assert not config.key_file.exists()


def test_the_key_of_a_home_is_not_sent_to_another_machine(tmp_path):
    config = Config(home=tmp_path, api_url="http://192.0.2.1:7780")
    server_key(config, fresh=FRESH)
    with pytest.raises(Unauthenticated, match="TORPOR_API_KEY"):
        client_key(config)
    assert client_key(Config(home=tmp_path, api_url=config.api_url, api_key=KEY)) == KEY
    config.server_file.write_text(json.dumps({"url": config.api_url}))
    assert client_key(config) == "torpor_" + FRESH.hex()


def test_a_missing_key_says_how_to_get_one(tmp_path):
    with pytest.raises(Unauthenticated, match="torpor up --detach"):
        client_key(Config(home=tmp_path, api_url="http://127.0.0.1:7780"))


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_only_loopback_counts_as_this_machine(host, alone):
    assert is_loopback(host) is alone


def test_another_address_wants_a_key_that_was_set_before():
    check_bind("0.0.0.0", key_was_known=True)
    check_bind("127.0.0.1", key_was_known=False)
    with pytest.raises(InvalidArgument, match="TORPOR_API_KEY") as refused:
        check_bind("0.0.0.0", key_was_known=False)
    assert refused.value.details == {"field": "host"}
