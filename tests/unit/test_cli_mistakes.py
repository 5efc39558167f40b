"""Bad values on the command line: one line that says what was wrong and the remedy, and the right exit code."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading

import pytest

NO_TEXT = "\udcff"  # what Python makes of the byte FF in an argument
LONG = "x" * 300


@pytest.fixture
def session(torpor):
    torpor("create", "--name", "one")


def refused(done, code, remedy):
    """One line, or one and a hint; a message in words, no traceback."""
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), said
    assert remedy in said
    assert said.startswith("torpor: ")
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said
    return said


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (("inspect", ""), 3, "torpor ls"),
        (("inspect", LONG), 3, "torpor ls"),
        (("inspect", "../one"), 3, "torpor ls"),
        (("inspect", NO_TEXT), 2, "not UTF-8"),
        (("create", "--template", NO_TEXT), 2, "not UTF-8"),
        (("create", "--metadata", f"a={NO_TEXT}"), 2, "not UTF-8"),
        (("create", "--env", f"A={NO_TEXT}"), 2, "not UTF-8"),
        (("create", "--name", NO_TEXT), 2, "a-z"),
        (("create", "--name", ""), 2, "a-z"),
        (("create", "--name", LONG), 2, "1 to 63"),
        (("create", "--name", "a b"), 2, "a-z"),
        (("create", "--cpus", "nan"), 2, "above 0"),
        (("create", "--cpus", "-1"), 2, "above 0"),
        (("create", "--memory", "-1"), 2, "512MiB"),
        (("set", "one"), 2, "--idle 10m"),
        (("set", "one", "--idle", "-1s"), 2, "or never"),
        (("set", "one", "--ttl", "99999999d"), 2, "315360000"),
        (("set", "one", "--on-resume", "x"), 2, "'resume', 'rebuild'"),
        (("pause", "one", "--wait", "x"), 2, "'cache', 'disk'"),
        (("fork", "one", "-n", "0"), 2, "greater than or equal to 1"),
        (("fork", "one", "-n", "100000"), 2, "64"),
        (("fork", "one", "--name", "a", "--name", "a"), 2, "each another name"),
        (("port", "one", "70000"), 2, "65535"),
        (("port", "one", "x"), 2, "integer"),
        (("cp", "", "one:/x"), 3, "no such file"),
        (("cp", NO_TEXT, "one:/x"), 3, "no such file"),
        (("cp", "/dev/null", f"one:/{NO_TEXT}"), 2, "not UTF-8"),
        (("cp", "/proc/self/mem", "one:/x"), 2, "Input/output error"),
        (("sh", "one", "true", "--timeout", "soon"), 2, "10m"),
        (("exec", "one", "--env", "=x", "--", "true"), 2, "NAME=VALUE"),
        (("store", "gc", "--grace", "-1"), 2, "30s"),
        (("store", "nonsense"), 2, "torpor store --help"),
        (("template", "build", "./nowhere.toml"), 3, "no such file"),
        (("template", "build", "/tmp/"), 2, "directory"),
        (("template", "build", "nonsense"), 3, "base, data"),
        (("template", "inspect", NO_TEXT), 2, "not UTF-8"),
        (("template", "rm", NO_TEXT), 2, "not UTF-8"),
        (("template", "from", "one", "--name", "A B"), 2, "a-z"),
        (("engine", "retire", ""), 3, "''"),
        (("export", "one", "/tmp/x"), 2, "TORPOR_PASSPHRASE"),
        (("import", "/nowhere"), 3, "torpor export"),
        (("import", "/tmp"), 2, "it is a folder"),
        (("bench", "resume", "--tier", "x"), 2, "'warm', 'local', 'cold'"),
    ],
)
def test_a_bad_value_is_told_in_words_and_in_json(torpor, arguments, code, remedy):
    said = refused(torpor(*arguments), code, remedy)
    as_json = torpor(arguments[0], "--json", *arguments[1:]) if "--" in arguments else torpor(*arguments, "--json")
    error = json.loads(as_json.stderr)
    assert (as_json.returncode, as_json.stdout, error.keys()) == (code, b"", {"code", "message", "details"})
    assert error["message"].encode("utf-8", "surrogateescape").decode(errors="replace") in said


@pytest.mark.parametrize(
    ("url", "code", "remedy"),
    [
        ("x", 2, "http://HOST:PORT"),
        ("ftp://x", 2, "http://HOST:PORT"),
        ("http://", 2, "http://HOST:PORT"),
        ("http://[::1", 2, "http://HOST:PORT"),
        ("http://127.0.0.1:99999", 2, "http://HOST:PORT"),
        (f"http://{NO_TEXT}", 2, "http://HOST:PORT"),
        ("http://127.0.0.1:1", 5, "torpor up --detach"),
    ],
)
def test_a_wrong_address_is_told(torpor, url, code, remedy):
    refused(torpor("--api-url", url, "ls"), code, remedy)


@pytest.mark.parametrize(
    "command", [("ls",), ("code", "one", "1"), ("cp", "one:/x", "-"), ("logs", "one"), ("export", "one", "-")]
)
def test_a_server_that_is_none_of_ours_is_told(torpor, command):
    with listener_of(OtherServer) as url:
        done = torpor("--api-url", url, *command, TORPOR_PASSPHRASE="five random words")
        refused(done, 5, "not a torpor server")


@pytest.mark.parametrize("command", [("ls",), ("code", "one", "1"), ("cp", "one:/x", "-")])
def test_something_that_speaks_no_http_is_told(torpor, command):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def babble():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"SSH-2.0-not-yours\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        refused(torpor("--api-url", f"http://127.0.0.1:{listener.getsockname()[1]}", *command), 5, "torpor ls")
        thread.join()


@pytest.mark.parametrize(
    "arguments", [("up", "--port", "0"), ("up", "--detach"), ("engine", "install"), ("template", "prune")]
)
def test_a_home_that_is_none_is_told(process, tmp_path, arguments):
    (tmp_path / "file").touch()
    refused(process(*arguments, TORPOR_HOME=str(tmp_path / "file")), 2, "set TORPOR_HOME to a folder")


@pytest.mark.parametrize("host", ["nosuch.invalid", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_told(process, host):
    refused(process("up", "--port", "0", "--host", host), 2, "--host 127.0.0.1")


@pytest.mark.usefixtures("session")
def test_a_wrong_key_is_told(torpor):
    refused(torpor("ls", TORPOR_API_KEY="a-key-that-is-not-the-server's"), 6, "api.key")
    refused(torpor("ls", TORPOR_API_KEY="short"), 2, "at least 20")
    refused(torpor("ls", TORPOR_API_KEY=f"not-ascii-{NO_TEXT}-and-long-enough"), 2, "ASCII")


@pytest.mark.usefixtures("session")
def test_a_passphrase_that_is_no_text_is_told_without_showing_it(torpor):
    assert NO_TEXT not in refused(
        torpor("export", "one", "/tmp/x", TORPOR_PASSPHRASE=f"secret{NO_TEXT}"), 2, "not UTF-8"
    )


@pytest.mark.usefixtures("session")
def test_what_is_written_here_says_the_place_and_why_not(torpor, tmp_path):
    torpor("cp", "-", "one:/x", stdin=b"abc" * 100_000)
    (tmp_path / "file").touch()
    refused(torpor("cp", "one:/x", "/dev/full"), 6, "no room left")
    refused(torpor("cp", "one:/x", str(tmp_path / "file/x")), 2, "Not a directory")
    refused(torpor("cp", "one:/x", str(tmp_path / "nowhere/x")), 3, "does not exist here")
    refused(torpor("cp", "one:/x", "/proc/x"), 3, "/proc")


@pytest.mark.usefixtures("session")
def test_a_deleted_session_is_as_unknown_as_any(torpor):
    ref = json.loads(torpor("inspect", "one", "--json").stdout)["id"]
    torpor("rm", "one")
    for command in ("inspect", "pause", "resume", "rm", "snapshot", "fork", "logs"):
        refused(torpor(command, ref), 3, "torpor ls")
        refused(torpor(command, "one"), 3, "torpor ls")


@pytest.mark.usefixtures("session")
def test_a_terminal_wants_one_here(torpor):
    refused(torpor("shell", "one"), 2, "torpor sh")


def test_the_version_wants_no_command(torpor):
    done = torpor("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"torpor 0.1.0\n", b"")


class OtherServer(http.server.BaseHTTPRequestHandler):
    """Answers everything with a page."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"<p>!")

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_arguments):
        """Quiet."""


@contextlib.contextmanager
def listener_of(handler):
    """A server of that handler in a thread; its address."""
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
