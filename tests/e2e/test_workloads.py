"""Programs that people keep open for hours go on where they were, over two pauses each; see docs/workloads.md."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import socket
import subprocess
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from e2e_home import TORPOR, Server, eventually, home_at, server_of
from websockets.sync.client import connect

from torpor import Client

pytestmark = [pytest.mark.engine, pytest.mark.long]

CYCLES = 2
TEMPLATE = Path(__file__).with_name("workloads.toml")
BROWSER = "chromium-headless-shell"
ON_UBUNTU = platform.freedesktop_os_release()["ID"] == "ubuntu"  # which has Chromium as a snap only
PORT = 8000
DEBUG_PORT = 9222


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A running server whose home has the template ``workloads``; nothing stays warm, so every resume is a restore."""
    with home_at(tmp_path_factory.mktemp("workloads") / "home") as home, server_of(home) as server:
        _own_templates(home)
        declared = TEMPLATE.read_text()
        (home / TEMPLATE.name).write_text(declared.replace(f'"{BROWSER}", ', "") if ON_UBUNTU else declared)
        built = server.command("template", "build", str(home / TEMPLATE.name), timeout_s=600)
        assert built.returncode == 0, built.stderr.decode()
        server.variables["TORPOR_WARM_BYTES"] = "0"
        client = server.start()
        yield server
        for session in list(client.sessions()):
            client.delete(session["id"])
        assert server.command("template", "rm", "workloads").returncode == 0


def _own_templates(home):
    """A folder of templates of its own, so that builds for other homes and this one do not meet; the trees by link."""
    shared = (home / "templates").resolve()
    (home / "templates").unlink()
    (home / "templates").mkdir(mode=0o700)
    for tree in shared.iterdir():
        if not tree.name.startswith("."):
            (home / "templates" / tree.name).symlink_to(tree)


@pytest.fixture
def session(server):
    access = server.clients[-1].access
    with (
        Client(access.url, access.key) as client,
        client.session(template="workloads", ephemeral=True, idle_s=None) as session,
    ):
        yield session


def pause(session):
    """Put it on disk; there is no instance of it any more."""
    paused = session.pause()
    assert (paused.status, paused.durability, paused.raw["instance"]) == ("paused", "disk", None)


def cycle(session):
    """Pause, and resume into another instance."""
    before = session.refresh().raw["instance"]
    pause(session)
    after = session.resume()
    assert after.status == "running"
    assert after.raw["instance"] not in {None, before}


def run(session, source, **options):
    """Run Python; the text of the last expression."""
    result = session.code(source, **options)
    assert result.ok, result.error.traceback if result.error else result
    return result.text


def sh(session, command):
    """Run a shell command; its output."""
    result = session.sh(command)
    assert result.ok, result
    return result.stdout.strip()


def start(session, *argv, user="root"):
    """Start a process that lives on across pauses."""
    assert session.exec(argv, detach=True, user=user).error is None


@contextlib.contextmanager
def port(server: Server, session, number):
    """``torpor port``: the URL's host and port on this machine."""
    command = (*TORPOR, "port", session.id, str(number), "--local", "0", "--json")
    environment = {**os.environ, **server.variables}
    environment.pop("TORPOR_API_URL", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            told = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
            yield f"127.0.0.1:{told['port']}"
        finally:
            process.terminate()


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


# Chromium: a page with timers, a worker, a field and a promise, driven from outside the sandbox.

CHROMIUM = (
    BROWSER,
    f"--remote-debugging-port={DEBUG_PORT}",
    "--user-data-dir=/tmp/profile",
    f"http://127.0.0.1:{PORT}/page.html",
)
# As root Chromium wants its own sandbox turned off; as anybody else it has one of namespaces and seccomp filters.
UNGUARDED = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PAGE = """<!doctype html><title>Kept</title><input id=field autofocus><canvas id=canvas></canvas><script>
let ticks = 0, ofWorker = 0, due = null
setInterval(() => { ticks += 1 }, 10)
const worker = new Worker(URL.createObjectURL(new Blob(["let n = 0; onmessage = () => postMessage(n += 1)"])))
worker.onmessage = message => { ofWorker = message.data }
const ask = () => new Promise(done => {
  worker.onmessage = message => done(message.data); worker.postMessage(0) })
document.getElementById("canvas").getContext("2d").fillRect(0, 0, 50, 50)
document.getElementById("field").focus()
</script>"""


class Page:
    """The open page, over one connection to the browser's debug port."""

    def __init__(self, target, socket) -> None:
        self.target = target
        self._socket = socket
        self._serial = 0

    def call(self, method, **parameters):
        self._serial += 1
        self._socket.send(json.dumps({"id": self._serial, "method": method, "params": parameters}))
        while (said := json.loads(self._socket.recv(60))).get("id") != self._serial:
            pass
        assert "error" not in said, said
        return said["result"]

    def value(self, expression):
        said = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")


@contextlib.contextmanager
def page_at(host):
    """A connection to the one page."""
    (told,) = [one for one in json.loads(get(f"http://{host}/json/list")) if one["type"] == "page"]
    with connect(told["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
        yield Page(told["id"], socket)


@pytest.mark.skipif(ON_UBUNTU, reason=f"Ubuntu has no package {BROWSER}: Chromium is a snap there")
@pytest.mark.parametrize(("user", "options"), [("root", UNGUARDED), ("user", ())])
def test_an_open_page_of_chromium_goes_on_with_its_timers_worker_field_and_promise(server, session, user, options):
    session.files.write("/workspace/site/page.html", PAGE)
    start(session, "python3", "-m", "http.server", "-d", "/workspace/site", str(PORT))
    with port(server, session, DEBUG_PORT) as host:
        start(session, *CHROMIUM, *options, user=user)
        eventually(lambda: _loaded(host), "the page is loaded")
        with page_at(host) as page:
            target = page.target
            page.call("Input.insertText", text="typed")
            assert page.value("ask()") == 1
            page.value("const kept = {list: [1, 2, 3]}; due = new Promise(done => setTimeout(done, 2000, 'due'))")
            ticks = page.value("ticks")
        for number in range(1, CYCLES + 1):
            pause(session)
            with page_at(host) as page:  # connecting has woken the session
                assert page.target == target
                assert page.value("kept.list.push(0)") == 3 + number
                assert page.value("ticks") >= ticks
                assert page.value("ask()") == 1 + number
                assert page.value("due") == "due"
                page.call("Input.insertText", text=str(number))
                assert page.value("document.getElementById('field').value") == "typed12"[: 5 + number]
                now = page.value("ticks")
                eventually(lambda page=page, now=now: page.value("ticks") > now, "timers go on")
                ticks = page.value("ticks")
                picture = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
                assert picture.startswith(b"\x89PNG")
                assert page.value("fetch('/page.html').then(answer => answer.status)") == 200
        assert session.refresh().generation == 1 + CYCLES
        with page_at(host) as page:
            page.call("Page.navigate", url=f"http://127.0.0.1:{PORT}/page.html?again")
            eventually(lambda: page.value("location.search") == "?again", "it opens another page")
            assert page.value("typeof kept") == "undefined"


def _loaded(host):
    with contextlib.suppress(OSError, ValueError), page_at(host) as page:
        return page.value("document.readyState") == "complete" and page.value("typeof ask") == "function"
    return False


# A language server: the document is open in it only, what is on disk is another.

LANGUAGE_SERVER = '''
import itertools, json, subprocess
server = subprocess.Popen(["pylsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
numbers = itertools.count(1)

def tell(method, **message):
    body = json.dumps({"jsonrpc": "2.0", "method": method, **message}).encode()
    server.stdin.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    server.stdin.flush()

def hear():
    length = 0
    while line := server.stdout.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    assert length, "the language server has ended"
    return json.loads(server.stdout.read(length))

def ask(method, **parameters):
    number = next(numbers)
    tell(method, id=number, params=parameters)
    while (said := hear()).get("id") != number:
        pass
    return said["result"]

document = {"uri": "file:///workspace/open.py"}
def hover(line, character):
    return ask("textDocument/hover", textDocument=document, position={"line": line, "character": character})

def names(line, character):
    position = {"line": line, "character": character}
    return [one["label"] for one in ask("textDocument/completion", textDocument=document, position=position)["items"]]

text = 'def half(number: float) -> float:\\n    """Divide by two."""\\n    return number / 2\\n\\nhalf(3)\\n'
open("/workspace/open.py", "w").write("on_disk = 1\\n")
ask("initialize", processId=None, rootUri="file:///workspace", capabilities={})
tell("initialized", params={})
tell("textDocument/didOpen", params={"textDocument": {**document, "languageId": "python", "version": 1, "text": text}})
hover(4, 1)
'''


def test_a_language_server_still_has_the_document_that_was_never_saved(session):
    assert "Divide by two." in run(session, LANGUAGE_SERVER)
    pid = run(session, "server.pid")
    for version in range(2, CYCLES + 2):
        cycle(session)
        assert "Divide by two." in run(session, "hover(4, 1)")
        run(
            session,
            f"text = text.replace('half', 'half{version}'); tell('textDocument/didChange', params={{'textDocument':"
            f" {{**document, 'version': {version}}}, 'contentChanges': [{{'text': text}}]}})",
        )
        name = run(session, "text.split('(')[0].split()[1]")
        assert name.strip("'") + "(number)" in run(session, "names(4, 3)")
    assert run(session, "server.poll() is None and server.pid") == pid
    assert run(session, "ask('shutdown'); tell('exit'); server.wait()") == "0"


# A Node server: its counter, its timer, and a connection that is kept open.

NODE = f"""
let asked = 0, ticks = 0
setInterval(() => {{ ticks += 1 }}, 10)
require("http").createServer((request, answer) => {{
  asked += 1
  answer.end(JSON.stringify({{ asked, ticks, pid: process.pid }}))
}}).listen({PORT}, "127.0.0.1").keepAliveTimeout = 0  // its 5 s would be over after a longer pause
"""
KEPT_OPEN = f"""
import http.client, json
connection = http.client.HTTPConnection("127.0.0.1", {PORT})
def asked():
    connection.request("GET", "/")
    return json.loads(connection.getresponse().read())["asked"]
connection.connect()
local = connection.sock.getsockname()
asked()
"""


def test_a_node_server_keeps_its_memory_its_timers_and_an_open_connection(server, session):
    session.files.write("/workspace/server.js", NODE)
    start(session, "node", "/workspace/server.js")
    with port(server, session, PORT) as host:
        eventually(lambda: _answers(host), "node answers")
        before = json.loads(get(f"http://{host}/"))
        count = int(run(session, KEPT_OPEN))
        assert count == before["asked"] + 1
        for _ in range(CYCLES):
            with socket.create_connection(host.split(":"), timeout=60) as open_here:
                open_here.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                assert open_here.recv(1) == b"H"
                count += 1
                pause(session)
                while open_here.recv(1000):  # what was answered, and then the end: nothing hangs
                    pass
            now = json.loads(get(f"http://{host}/"))  # asking has woken the session
            assert (now["asked"], now["pid"]) == (count + 1, before["pid"])
            assert now["ticks"] >= before["ticks"]
            eventually(lambda now=now: json.loads(get(f"http://{host}/"))["ticks"] > now["ticks"], "timers go on")
            count = int(run(session, "asked()"))
            assert run(session, "connection.sock.getsockname() == local") == "True"
            before = {**now, "asked": count}
    assert session.refresh().generation == 1 + CYCLES


def _answers(host):
    with contextlib.suppress(OSError):
        return get(f"http://{host}/")
    return None


# A plot, as in a notebook.

PLOT = """
import matplotlib.pyplot as plt, numpy
figure, axes = plt.subplots()
line, = axes.plot(numpy.linspace(0, 1, 50) ** 2)
axes.set_title("kept")
plt.show()
"""


def picture(session, source):
    """The one picture that the code shows."""
    result = session.code(source)
    assert result.ok, result.error
    (png,) = [shown["image/png"] for shown in (*result.displays, result.data) if "image/png" in shown]
    assert base64.b64decode(png).startswith(b"\x89PNG")
    return png


def test_a_figure_is_shown_again_as_it_was_and_can_be_drawn_on(session):
    picture(session, PLOT)
    last = picture(session, "figure")
    for number in range(CYCLES):
        cycle(session)
        assert picture(session, "figure") == last
        last = picture(session, f"_ = axes.plot([{number}, 1]); display(figure)")
        assert run(session, "len(axes.lines)") == str(2 + number)
    assert run(session, "line.get_ydata()[-1] == 1.0") == "True"


# pip, from a folder of wheels.

FILES_OF_WHEEL = 100
LOOK = "import torpor_proof as it, pkgutil; print(it.VERSION, len([*pkgutil.iter_modules(it.__path__)]))"


def wheel(version):
    """A wheel of many small files."""
    info = f"torpor_proof-{version}.dist-info"
    files = {f"torpor_proof/part{number}.py": f"VALUE = {number}\n" for number in range(FILES_OF_WHEEL)}
    files["torpor_proof/__init__.py"] = f"VERSION = {version}\n"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: torpor-proof\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def test_pip_installs_from_a_folder_of_wheels_before_after_and_across_a_pause(session):
    for version in range(1, CYCLES + 2):
        session.files.write(f"/workspace/wheels/torpor_proof-{version}-py3-none-any.whl", wheel(version))
    sh(session, "python3 -m venv /workspace/venv")
    pip = "/workspace/venv/bin/pip install --no-index --find-links /workspace/wheels"
    sh(session, f"{pip} torpor-proof==1")
    run(session, "import sys, glob, subprocess; sys.path += glob.glob('/workspace/venv/lib/*/site-packages')")
    assert run(session, "import torpor_proof; torpor_proof.VERSION") == "1"
    for version in range(2, CYCLES + 2):
        run(session, f"running = subprocess.Popen({[*pip.split(), f'torpor-proof=={version}']!r})")
        cycle(session)  # wherever pip is
        assert run(session, "running.wait()") == "0"
        assert run(session, "torpor_proof.VERSION") == "1", "what was imported stays"
        assert sh(session, f"/workspace/venv/bin/python -c '{LOOK}'") == f"{version} {FILES_OF_WHEEL}"
    assert sh(session, "/workspace/venv/bin/pip check") == "No broken requirements found."


# SQLite: one connection is in the middle of a transaction, another process wants to write.

WRITER = """
import sqlite3
database = sqlite3.connect("/workspace/data.sqlite3", isolation_level=None)
database.execute("PRAGMA journal_mode = {mode}")
database.execute("CREATE TABLE IF NOT EXISTS rows (number)")
database.execute("BEGIN IMMEDIATE")
"""
OTHER = """
import sqlite3
database = sqlite3.connect("/workspace/data.sqlite3", isolation_level=None, timeout=0)
def attempt():
    try:
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        return str(error)
    database.execute("ROLLBACK")
    return "free"
"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_open_transaction_of_sqlite_keeps_its_rows_and_its_lock(session, mode):
    run(session, WRITER.format(mode=mode))
    run(session, OTHER, context="other")
    assert run(session, "import os; os.getpid()") != run(session, "import os; os.getpid()", context="other")
    for number in range(1, CYCLES + 1):
        run(session, f"database.executemany('INSERT INTO rows VALUES (?)', [({number},)] * 1000).rowcount")
        cycle(session)
        assert run(session, "database.in_transaction") == "True"
        assert run(session, "database.execute('SELECT count(*) FROM rows').fetchone()") == f"({1000 * number},)"
        assert run(session, "attempt()", context="other") == "'database is locked'"
        seen = "database.execute('SELECT count(*) FROM rows').fetchone()"
        assert run(session, seen, context="other") == f"({1000 * (number - 1)},)"
        run(session, "database.execute('COMMIT')")
        assert run(session, seen, context="other") == f"({1000 * number},)"
        assert run(session, "attempt()", context="other") == "'free'"
        run(session, "database.execute('BEGIN IMMEDIATE')")
    run(session, "database.execute('ROLLBACK')")
    assert run(session, "database.execute('PRAGMA integrity_check').fetchone()", context="other") == "('ok',)"


# tmux, with a program that counts and one that waits for what is typed.

TMUX = """
tmux new-session -d -s work -x 80 -y 24 'python3 -iqc "kept = [1, 2, 3]"'
tmux new-window -d -n counting 'bash -c "for ((n = 1;; n++)); do echo line \\$n; sleep 0.05; done"'
tmux set-option -g history-limit 5000
"""


def test_tmux_keeps_its_windows_and_what_runs_in_them(session):
    sh(session, TMUX)
    pids = "tmux list-panes -s -t work -F '#{window_name} #{pane_pid} #{pane_dead}'"
    before = sh(session, pids)
    assert len(before.splitlines()) == 2
    eventually(lambda: _counted(session) > 0, "the counter counts")
    for number in range(1, CYCLES + 1):
        last = _counted(session)
        cycle(session)
        assert sh(session, pids) == before
        assert _counted(session) >= last
        now = _counted(session)
        eventually(lambda now=now: _counted(session) > now, "the counter goes on")
        sh(session, "tmux send-keys -t work:0 'kept.append(len(kept)); kept' Enter")
        wanted = str([1, 2, 3, *range(3, 3 + number)])
        eventually(lambda wanted=wanted: wanted in sh(session, "tmux capture-pane -p -t work:0"), "the prompt answers")


def _counted(session):
    lines = [line for line in sh(session, "tmux capture-pane -p -t work:counting").splitlines() if line.strip()]
    return int(lines[-1].split()[1]) if lines else 0
