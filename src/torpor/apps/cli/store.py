"""The snapshot store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torpor.apps.cli import exits, screen
from torpor.apps.cli.amounts import duration_s
from torpor.apps.cli.options import AsJson, connected, examples

app = typer.Typer(
    no_args_is_help=True, help="The snapshot store.", epilog=examples("torpor store check", "torpor store gc --dry-run")
)


@app.callback()
def root() -> None:
    """The snapshot store."""


@app.command(epilog=examples("torpor store check", "torpor store check --json"))
def check(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Read and authenticate everything in the store. Exit code 1 if anything is not sound."""
    with connected(context) as client, screen.waiting("checking the store", quiet=as_json):
        report = client.store_check()
    if as_json:
        screen.emit(report)
    else:
        for name, value in report.items():
            screen.say(f"{name:<20} {value}")
    return exits.OK if report["clean"] else exits.FAILED


@app.command("gc", epilog=examples("torpor store gc --dry-run", "torpor store gc", "torpor store gc --grace 0s"))
def collect_garbage(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go. Default: remove it.")] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="DURATION", help="Least time without use, from 0s. Default: 1h.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", min=1, metavar="N", help="Snapshots of each session that stay. Default: 2.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove from the store what nothing has used for the grace. Sessions may run meanwhile.

    What is without use is first marked, and goes in a later run once the grace has passed.
    """
    grace_s = None if grace is None else _grace_s(grace)
    with connected(context) as client, screen.waiting("collecting garbage", quiet=as_json):
        report = client.collect_garbage(dry_run=dry_run, grace_s=grace_s, keep=keep)
    if as_json:
        screen.emit(report)
        return
    screen.say(f"{'would remove' if dry_run else 'removed'} {_amount(report['removed'])}")
    if report["waiting"]["count"]:
        screen.say(f"waiting {_amount(report['waiting'])}; the first may go at {report['waiting']['next_due_at']}")
    if report["headless"]:
        screen.note(f"{len(report['headless'])} pointers are lost; `torpor store rebuild-catalog` finds their sessions")
    for manifest in report["blocked"]:
        screen.note(f"no pack may go while {manifest} cannot be read; `torpor store check` says more")


@app.command("rebuild-catalog", epilog=examples("torpor store rebuild-catalog"))
def rebuild_catalog(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Insert the sessions and templates that the store has and the catalog lacks. Exit code 1 if some are unreadable.

    For a lost catalog, or a store that came from elsewhere with its keys. What is there stays as it is.
    """
    with connected(context) as client, screen.waiting("rebuilding the catalog", quiet=as_json):
        report = client.rebuild_catalog()
    if as_json:
        screen.emit(report)
    else:
        screen.say(
            f"inserted {len(report['sessions'])} sessions and {len(report['templates'])} templates; "
            f"{report['known_count']} were there"
        )
        for session, name in report["renamed"].items():
            screen.note(f"{session} has no name now: {name} was taken")
        for session in report["older"]:
            screen.note(f"{session}: only an older snapshot opens; `torpor resume {session} --allow-older` takes it")
        for subject, why in report["unreadable"].items():
            screen.note(f"{subject} cannot be read: {why}")
    return exits.FAILED if report["unreadable"] else exits.OK


def _grace_s(text: str) -> float:
    return 0.0 if text in {"0", "0s"} else duration_s(text, field="grace")


def _amount(told: dict[str, Any]) -> str:
    reasons = ", ".join(f"{one['count']} {reason}" for reason, one in told["reasons"].items())
    return f"{told['count']} objects, {screen.size(told['size_bytes'])}{f' ({reasons})' if reasons else ''}"
