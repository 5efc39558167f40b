"""What is made of a session: snapshots and forks."""

from __future__ import annotations

from typing import Annotated

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.options import AsJson, Ref, connected, examples, pairs


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(epilog=examples("torpor snapshot analysis"))(snapshot)
    app.command(
        epilog=examples(
            "torpor fork analysis", "torpor fork analysis -n 3", "torpor fork analysis --name left --name right"
        )
    )(fork)


def snapshot(context: typer.Context, ref: Ref, *, as_json: AsJson = False) -> None:
    """Store what a session is now, and let it go on."""
    with connected(context) as client, screen.waiting(f"taking a snapshot of {ref}", quiet=as_json):
        session = client.snapshot(ref)
    if as_json:
        screen.emit(session)
        return
    taken = session["snapshot"]
    sizes = f"{screen.size(taken['new_bytes'])} new of {screen.size(taken['image_bytes'])}"
    screen.say(f"{screen.label(session)} has snapshot {taken['sequence']} of {taken['instant']}; {sizes}")


def fork(
    context: typer.Context,
    ref: Ref,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 1,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="A name for a copy; may be repeated, and then says how many.",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Kept with the copies; may be repeated.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make copies of a session as it is now: same memory and disk, each with an identity of its own.

    They run on return; their ids are printed. All are made, or none. The session itself goes on.
    """
    request = {"names": list(names or ()), "metadata": pairs(metadata, option="--metadata")}
    with connected(context) as client, screen.waiting(f"forking {ref}", quiet=as_json):
        forks = client.fork(ref, **request, **({} if names else {"count": count}))
    if as_json:
        screen.emit(forks)
        return
    for one in forks:
        screen.say(one["id"])
