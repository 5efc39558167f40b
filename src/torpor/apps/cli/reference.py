"""docs/cli.md and docs/errors.md, written from the commands and the error classes themselves.

``python -m torpor.apps.cli.reference`` rewrites them; a test fails while they differ.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

from torpor.apps.cli import exits
from torpor.apps.settings import SETTINGS, Setting
from torpor.domain.errors import TorporError

WIDTH = 100
REGENERATE = "python -m torpor.apps.cli.reference"

HEAD = """\
# The command line

Results are on stdout, everything else on stderr. A session's id or name is accepted anywhere. `--json` prints JSON, and
errors as JSON `{code, message, details}` on stderr. `code`, `sh`, `exec`, `cp`, `port` and `shell` wake a paused
session and say so on stderr.

## Settings

A flag, given before the command, wins over the environment, that over `torpor.toml` in the current folder, that over
`torpor.toml` in the home, and that over the default. `torpor config show` says what holds and who said it. The file is
a line for each setting, by the names in the last column: `warm_bytes = 2147483648`. The key belongs into no such file,
and the home's own file cannot say where the home is.
"""

KEY = """\
The key of a home is made with mode 0600 on the first start. The command line sends it to this machine and to the home's
own server only; any other server needs `TORPOR_API_KEY`. The server listens on loopback. It takes another `--host` only
if the key was set before that start: by `TORPOR_API_KEY`, or by an `api.key` that exists and that nobody else may read.

The last three are the server's. The query of an S3 URL may hold `endpoint=URL` for a store that speaks like S3,
`region=NAME`, and `path_style=false` for a bucket in the host's name. Credentials come from the usual places:
`AWS_ACCESS_KEY_ID` and its kin, a profile of `~/.aws/credentials`, web identity, container or instance metadata. A
server with an empty home, given the store's URL and a copy of the keys, can open every snapshot there.

## Exit codes
"""

CODES = """\
`sh` and `exec` end with the command's own code when it ran (128 + N if signal N killed it); torpor's own failures start
with `torpor:` on stderr. Ctrl-C interrupts `code`; what `sh` and `exec` started goes on in the session.

## Commands
"""

ERRORS = """\
# Errors

Every failing answer of the API, and every error of the command line with `--json`, is `{code, message, details}`. The
code is stable; the message says what cannot be done, why, and the remedy.
"""

STATUSES = """\
`invalid_argument` is also answered with 405 (a method the route does not take) and 413 (a body above 64 MiB). An answer
with `details.retry_after_s` carries a `Retry-After` header.
"""


def cli_markdown() -> str:
    """docs/cli.md, without the line that says it is generated."""
    from torpor.apps.cli.main import app  # noqa: PLC0415 - main imports every command; this module is read without them

    command: Any = typer.main.get_command(app)
    rows = [
        (f"`{one.variable}`", f"`{one.flag}`" if one.flag else "none", one.default, one.what, _toml(one))
        for one in SETTINGS
    ]
    settings = _table(("Environment", "Flag", "Default", "What", "In torpor.toml"), rows)
    codes = _table(("Code", "Meaning"), [(f"{code}", meaning) for code, meaning in exits.MEANINGS.items()])
    context = typer.Context(command, info_name="torpor", terminal_width=WIDTH, **command.context_settings)
    commands = _commands(command, context)
    return "\n".join([HEAD, settings, KEY, codes, CODES, "\n".join(commands)])


def errors_markdown() -> str:
    """docs/errors.md, without the line that says it is generated."""
    classes: list[type[TorporError]] = [TorporError, *TorporError.__subclasses__()]
    rows = [(f"`{cls.code}`", f"{cls.http_status}", f"{exits.exit_code(cls(''))}", _summary(cls)) for cls in classes]
    return "\n".join([ERRORS, _table(("Code", "HTTP", "Exit", "Meaning"), rows), STATUSES])


def documents(root: Path) -> dict[Path, str]:
    """What this module writes, by path."""
    from torpor.apps.api.reference import api_markdown  # noqa: PLC0415 - imports the whole API

    texts = {"cli.md": cli_markdown(), "errors.md": errors_markdown(), "api.md": api_markdown()}
    mark = f"<!-- generated: {REGENERATE} -->\n\n"
    return {root / "docs" / name: f"{mark}{text.rstrip()}\n" for name, text in texts.items()}


def _commands(command: Any, context: Any) -> list[str]:  # noqa: ANN401 - typer does not export its command classes
    text = [f"### {context.command_path}\n", f"```text\n{command.get_help(context).strip()}\n```\n"]
    for name, child in getattr(command, "commands", {}).items():
        text += _commands(child, typer.Context(child, parent=context, info_name=name, terminal_width=WIDTH))
    return text


def _toml(setting: Setting) -> str:
    return f"`{setting.name}`" if setting.places else "no"


def _summary(cls: type[TorporError]) -> str:
    if cls is TorporError:
        return "A mistake of ours; the server's log has it."
    return (inspect.getdoc(cls) or "").replace("``", "`").replace("\n", " ")


def _table(headings: tuple[str, ...], rows: Any) -> str:  # noqa: ANN401 - rows of text, as tuples or lists
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(root: str = ".") -> None:
    """Rewrite the documents under ``root``."""
    for path, text in documents(Path(root)).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
