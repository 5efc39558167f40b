"""The command line: its commands put together, and how failures become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from torpor import __version__
from torpor.apps.cli import (
    bench,
    bursts,
    clocks,
    copies,
    copying,
    engine,
    exits,
    inside,
    moving,
    run,
    screen,
    server,
    sessions,
    settings,
    store,
    streams,
    template,
    terminal,
)
from torpor.apps.cli.options import examples
from torpor.domain.errors import InvalidArgument, TorporError

# What typer raises for a wrong command line. Of this family only BadParameter has a public name.
UsageError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "UsageError")

app = typer.Typer(
    name="torpor",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: half the start-up time, and the reference in docs/cli.md is the same text
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:  # noqa: FBT001 - typer's form of a callback
    """At once: no command is wanted beside it."""
    if asked:
        screen.say(f"torpor {__version__}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "torpor up --detach",
        "torpor create --template data --name analysis",
        "torpor code analysis 'x = 41'",
        "torpor pause analysis",
        "torpor code analysis 'x + 1'",
    )
)
def root(
    context: typer.Context,
    *,
    home: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="The data folder. Default: $TORPOR_HOME, else ~/.torpor.", show_default=False
        ),
    ] = None,
    api_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The server. Default: $TORPOR_API_URL, else the one that runs on the home, else http://127.0.0.1:7780.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful sandbox sessions that survive their waits.

    A session keeps its processes, variables, open files and disk while it is paused, and costs no compute then.
    `code`, `sh`, `exec`, `cp`, `port` and `shell` wake a paused session and say so on stderr.

    The key is $TORPOR_API_KEY, else the one in the home's api.key, which is sent to this machine only.
    """
    del version
    context.obj = {"home": home, "api_url": api_url}


for part in (server, sessions, run, bursts, terminal, copying, inside, copies, moving, clocks):
    part.add_to(app)
app.add_typer(template.app, name="template")
app.add_typer(engine.app, name="engine")
app.add_typer(store.app, name="store")
app.add_typer(bench.app, name="bench")
app.add_typer(settings.app, name="config")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (``exits``). Typed errors are reported, bugs leave a traceback."""
    streams.prepare()
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    try:
        code = _command()(args=given, prog_name="torpor", standalone_mode=False)
        streams.finish()
    except streams.ReaderGone:
        return exits.UNREAD
    except typer.Abort:  # the end of input where something was asked
        return exits.INTERRUPTED
    except TorporError as error:
        screen.report(error, as_json=as_json)
        return exits.exit_code(error)
    except UsageError as error:
        _report_usage(error, as_json=as_json)
        return exits.USAGE
    except OSError as error:
        screen.report(TorporError(f"cannot finish: {error}"), as_json=as_json)
        return exits.REFUSED
    return code if isinstance(code, int) else exits.OK


@cache
def _command() -> Any:  # noqa: ANN401 - as UsageError: typer brings a click of its own
    """Every command and option: made once in a process, since it takes as long as most commands."""
    return typer.main.get_command(app)


def _report_usage(error: Any, *, as_json: bool) -> None:  # noqa: ANN401 - see UsageError
    context: typer.Context | None = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "torpor"
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None and not as_json:
        streams.tell(context.get_help() + "\n")
        return
    remedy = f"`{where} --help` shows how"
    if "No such option" in str(error) and where == "torpor exec":
        remedy = "put `--` before the command: `torpor exec ID -- CMD`"
    said = error.format_message().rstrip(".").replace("Value error, ", "").replace("Input should be", "it should be")
    message = f"{said}; {remedy}"
    screen.report(InvalidArgument(message, field="arguments"), as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
