"""A session's life: create, ls, inspect, pause, resume, rm."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from torpor.apps.cli import clocks, exits, screen
from torpor.apps.cli.amounts import size_bytes
from torpor.apps.cli.options import AsJson, Ref, connected, examples, pairs
from torpor.domain.errors import InvalidArgument, TorporError
from torpor.domain.session import Persistence


class Wait(StrEnum):
    """What ``pause`` waits for."""

    CACHE = "cache"
    DISK = "disk"
    OBJECT = "object"
    NONE = "none"


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    app.command(
        epilog=examples(
            "torpor create",
            "torpor create --template data --name analysis --metadata user=ann --env TZ=UTC",
            "torpor create --name analysis --get-or-create --idle 10m --ttl 7d --retention 90d",
            "torpor create --json",
        )
    )(create)
    app.command("ls", epilog=examples("torpor ls", "torpor ls --json"))(list_sessions)
    app.command(epilog=examples("torpor inspect analysis", "torpor inspect analysis --json"))(inspect)
    app.command(epilog=examples("torpor pause analysis", "torpor pause analysis --wait disk --json"))(pause)
    app.command(epilog=examples("torpor resume analysis", "torpor resume analysis --allow-older"))(resume)
    app.command("rm", epilog=examples("torpor rm analysis", "torpor rm one two three"))(remove)


def create(
    context: typer.Context,
    *,
    template: Annotated[
        str, typer.Option(metavar="NAME", help="What to make it of; see `torpor template list`.")
    ] = "data",
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A name to use wherever an id is. Default: none.", show_default=False),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Kept with the session; may be repeated.", show_default=False),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="An environment variable inside; may be repeated.", show_default=False),
    ] = None,
    persistence: Annotated[Persistence, typer.Option(help="What survives a pause.")] = Persistence.MEMORY,
    get_or_create: Annotated[
        bool, typer.Option("--get-or-create", help="If one of that name exists, print its id instead.")
    ] = False,
    cpus: Annotated[
        float | None,
        typer.Option(help="How many it may use at once, also a fraction. Default: the template's.", show_default=False),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="How much it may use, for instance 2G. Default: the template's.", show_default=False
        ),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Must be the template's. Default: the template's.", show_default=False),
    ] = None,
    idle: clocks.Idle = None,
    timeout: clocks.RunTime = None,
    timeout_action: clocks.Action = None,
    ttl: clocks.Ttl = None,
    retention: clocks.Retention = None,
    on_resume: clocks.Return = None,
    as_json: AsJson = False,
) -> None:
    """Create a session. It runs on return; its id is printed.

    Its disk is of the size that its template was captured with; asking for another is refused, not ignored.
    """
    durations = {"idle": idle, "timeout": timeout, "ttl": ttl, "retention": retention}
    request: dict[str, Any] = {
        "template": template,
        "name": name,
        "persistence": persistence.value,
        "get_or_create": get_or_create,
        "metadata": pairs(metadata, option="--metadata"),
        "env": pairs(env, option="--env"),
        **({} if cpus is None else {"cpus": _cpus(cpus)}),
        **({} if memory is None else {"memory_bytes": size_bytes(memory, field="memory")}),
        **({} if disk is None else {"disk_bytes": size_bytes(disk, field="disk")}),
        **clocks.given(durations, action=timeout_action, back=on_resume),
    }
    with connected(context) as client, screen.waiting(f"creating a session of {template}", quiet=as_json):
        session = client.create(**request)
    screen.emit(session) if as_json else screen.say(session["id"])


def list_sessions(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List sessions, newest first."""
    with connected(context) as client, screen.waiting("listing sessions", quiet=as_json):
        found = list(client.sessions())
    if as_json:
        screen.emit(found)
        return
    rows = [
        [
            session["id"],
            session["name"] or "-",
            session["status"],
            session["durability"] or "-",
            session["template"],
            str(session["generation"]),
            screen.age(session["created_at"]),
        ]
        for session in found
    ]
    screen.table(["ID", "NAME", "STATUS", "DURABILITY", "TEMPLATE", "GENERATION", "CREATED"], rows)


def inspect(context: typer.Context, ref: Ref, *, as_json: AsJson = False) -> None:
    """Show everything about a session. Does not wake it."""
    with connected(context) as client, screen.waiting(f"inspecting {ref}", quiet=as_json):
        session = client.get(ref)
    if as_json:
        screen.emit(session)
        return
    for name, value in _lines(session):
        screen.say(f"{name:<22} {value}")


def pause(
    context: typer.Context,
    ref: Ref,
    *,
    wait: Annotated[Wait, typer.Option(help="Return once the snapshot is that safe.")] = Wait.DISK,
    as_json: AsJson = False,
) -> None:
    """Snapshot a session and give its instance back. The next burst resumes it where it was."""
    with connected(context) as client, screen.waiting(f"pausing {ref}", quiet=as_json):
        session = client.pause(ref, wait=None if wait is Wait.NONE else wait.value)
    screen.emit(session) if as_json else screen.say(_paused(session))


def resume(
    context: typer.Context,
    ref: Ref,
    *,
    allow_older: Annotated[
        bool, typer.Option("--allow-older", help="Take the previous snapshot if the newest cannot be restored.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a paused session back now; bursts do so on their own."""
    with connected(context) as client, screen.waiting(f"resuming {ref}", quiet=as_json):
        session = client.resume(ref, allow_older=allow_older)
    if as_json:
        screen.emit(session)
        return
    screen.woken(screen.label(session), session["resumed"])
    screen.say(f"{screen.label(session)} is {session['status']}, generation {session['generation']}")


def remove(
    context: typer.Context,
    refs: Annotated[list[str], typer.Argument(metavar="ID", help="Ids or names.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> int:
    """Delete sessions and destroy their keys: nothing of them can be read again.

    Goes on after a failure; the exit code is that of the first one.
    """
    deleted: list[Any] = []
    failures: list[TorporError] = []
    with connected(context) as client:
        for ref in refs:
            try:
                with screen.waiting(f"deleting {ref}", quiet=as_json):
                    session = client.delete(ref)
            except TorporError as error:
                failures.append(error)
                screen.report(error, as_json=as_json)
                continue
            deleted.append(session)
            if not as_json:
                screen.say(ref)
    if as_json:
        screen.emit(deleted)
    return exits.exit_code(failures[0]) if failures else exits.OK


def _cpus(count: float) -> float:
    if not 0 < count < math.inf:
        raise InvalidArgument(f"cannot use {count:g} as cpus: write a number above 0, for instance 2", field="cpus")
    return count


def _paused(session: screen.JSON) -> str:
    line = f"{screen.label(session)} is {session['status']}"
    if session["durability"]:
        line += f", durable: {session['durability']}"
    if snapshot := session["snapshot"]:
        line += f"; {screen.size(snapshot['new_bytes'])} new of {screen.size(snapshot['image_bytes'])}"
    return line


def _lines(session: screen.JSON) -> list[tuple[str, str]]:
    limits = session["limits"]
    memory, disk = screen.size(limits["memory_bytes"]), screen.size(limits["disk_bytes"])
    lines = [
        ("id", session["id"]),
        ("name", session["name"] or "-"),
        ("status", f"{session['status']} ({session['status_detail']})"),
        ("durability", session["durability"] or "-"),
        ("generation", f"{session['generation']} ({session['resumes_count']} resumes)"),
        ("template", f"{session['template']} ({session['template_digest'][:12]})"),
        ("persistence", session["persistence"]),
        ("created", f"{session['created_at']} ({screen.age(session['created_at'])})"),
    ]
    if session["paused_at"]:
        lines.append(("paused", f"{session['paused_at']} ({screen.age(session['paused_at'])})"))
    lines += [
        ("compute used", f"{screen.span(session['compute_s'])}, CPU {screen.span(session['cpu_s'])}"),
        ("memory now", screen.size(session["memory_bytes"] or 0)),
        ("limits", f"{limits['cpus']:g} CPUs, {limits['pids_max']} processes, {memory} of memory, {disk} of disk"),
    ]
    lines.append(("clocks", clocks.summary(session)))
    if session["awake_because"]:
        lines.append(("awake because", "; ".join(session["awake_because"])))
    if session["expires_at"]:
        lines.append(("expires", session["expires_at"]))
    if session["forked_from"]:
        lines.append(("forked from", session["forked_from"]))
    if snapshot := session["snapshot"]:
        sizes = f"{screen.size(snapshot['new_bytes'])} new of {screen.size(snapshot['image_bytes'])}"
        lines.append(("snapshot", f"number {snapshot['sequence']} of {snapshot['instant']}, {sizes}"))
        lines.append(("  took", _timings(snapshot["timings_ms"])))
    if session["last_timings_ms"]:
        lines.append(("last operation", _timings(session["last_timings_ms"])))
    lines += [(f"  {name}", value) for name, value in sorted(session["metadata"].items())]
    if session["env_names"]:
        lines.append(("env", ", ".join(session["env_names"])))
    if session["last_error"]:
        lines.append(("last error", session["last_error"]))
    for moment in session["timeline"]:
        reason = f" ({moment['reason']})" if moment["reason"] else ""
        lines.append((f"  {moment['at'][:19]}Z", f"{moment['status']}: {moment['event']}{reason}"))
    return lines


def _timings(timings_ms: dict[str, float]) -> str:
    return ", ".join(f"{step} {screen.span(took_ms / 1000)}" for step, took_ms in timings_ms.items()) or "-"
