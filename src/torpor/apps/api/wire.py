"""Domain values to JSON: snake_case, RFC 3339 times, units last. Pure."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torpor.apps.api.output import Collector, text_or_none
from torpor.domain.clocks import expires_at_s
from torpor.domain.errors import TorporError
from torpor.domain.session import Session, SnapshotRecord
from torpor.ports.catalog import TemplateRecord
from torpor.services.requests import Burst, Resumption
from torpor.services.shelf import Shelved
from torpor.store.garbage import Garbage
from torpor.store.snapshots import SweepReport

JSON = dict[str, Any]

INSTANT_S_MIN = -62_135_596_800  # 0001-01-01
INSTANT_S_MAX = 253_402_300_799  # 9999-12-31
INSTANTS_KEPT = 8192  # a list of two hundred sessions has two thousand, the same at every look


@functools.lru_cache(INSTANTS_KEPT)
def instant(wall_s: float) -> str:
    """RFC 3339 in UTC, to the millisecond. What it cannot say, such as a file's date in year 33658, is its nearest."""
    return (
        datetime.fromtimestamp(min(max(wall_s, INSTANT_S_MIN), INSTANT_S_MAX), UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def instant_or_none(wall_s: float | None) -> str | None:
    """As ``instant``; None stays None."""
    return None if wall_s is None else instant(wall_s)


def session_json(session: Session, *, now_s: float, usage: Mapping[str, float] | None = None) -> JSON:
    """What clients see of a session. ``compute_s`` runs up to ``now_s``; ``usage`` adds the live instance's CPU."""
    live_s = 0.0 if session.running_since_s is None else max(0.0, now_s - session.running_since_s)
    live = usage or {}
    return {
        "id": session.id,
        "name": session.name,
        "status": session.status.public,
        "status_detail": session.status.value,
        "durability": session.durability.value if session.durability else None,
        "generation": session.generation,
        "operation": session.operation,
        "template": session.template,
        "template_digest": session.template_digest,
        "persistence": session.persistence.value,
        "created_at": instant(session.created_at_s),
        "running_since": instant_or_none(session.running_since_s),
        "paused_at": instant_or_none(session.paused_at_s),
        "snapshot": snapshot_json(session.snapshot) if session.snapshot else None,
        "compute_s": round(session.compute_s + live_s, 3),
        "cpu_s": round(session.cpu_s + live.get("cpu_s", 0.0), 3),
        "memory_bytes": int(live["memory_bytes"]) if "memory_bytes" in live else None,
        "resumes_count": session.resumes_count,
        "limits": {
            "cpus": session.limits.cpus,
            "memory_bytes": session.limits.memory_bytes,
            "disk_bytes": session.limits.disk_bytes,
            "pids_max": session.limits.pids_max,
        },
        "metadata": dict(session.metadata),
        "env_names": sorted(session.env),  # values may be secrets
        **_clocks_json(session),
        "forked_from": session.forked_from,
        "timeline": [
            {"at": instant(one.at_s), "status": one.status.value, "event": one.event, "reason": one.reason}
            for one in session.timeline
        ],
        "node": session.node,
        "instance": session.instance,
        "last_error": session.last_error,
        "last_timings_ms": dict(session.last_timings_ms),
    }


def _clocks_json(session: Session) -> JSON:
    policy = session.policy
    return {
        "clocks": {
            "idle_s": policy.idle_s,
            "timeout_s": policy.timeout_s,
            "timeout_action": policy.timeout_action.value,
            "retention_s": policy.retention_s,
            "on_resume": policy.on_resume.value,
        },
        "hard_deadline_at": instant_or_none(session.hard_deadline_at_s),
        "run_deadline_at": instant_or_none(session.run_deadline_at_s),
        "run_left_s": None if session.run_left_s is None else round(session.run_left_s, 3),
        "expires_at": instant_or_none(expires_at_s(session)),
    }


def snapshot_json(snapshot: SnapshotRecord) -> JSON:
    """The newest snapshot, without its reference into the store."""
    return {
        "sequence": snapshot.sequence,
        "instant": instant(snapshot.instant_s),
        "image_bytes": snapshot.image_bytes,
        "new_bytes": snapshot.new_bytes,
        "timings_ms": dict(snapshot.timings_ms),
    }


def resumption_json(resumption: Resumption | None) -> JSON | None:
    """How and after how long the session came back, None if it was there."""
    if resumption is None:
        return None
    return {
        "cause": resumption.cause.value,
        "outcome": resumption.outcome.value,
        "stepped_down": list(resumption.stepped_down),
        "gap_s": round(resumption.gap_s, 3),
        "wall_time": instant(resumption.wall_time_s),
        "tier": str(resumption.tier),
        "generation": resumption.generation,
        "attempts": resumption.attempts,
        "dropped": list(resumption.dropped),
        "timings_ms": dict(resumption.timings_ms),
    }


def outcome_json(burst: Burst, *, took_ms: float, dropped_bytes: int = 0) -> JSON:
    """How a burst ended, without its output."""
    result = burst.result
    error = result.error
    return {
        "session": {"id": burst.session.id, "name": burst.session.name, "generation": burst.session.generation},
        "result": None if result.result is None else dict(result.result),
        "error": None if error is None else {"name": error.name, "value": error.value, "traceback": error.traceback},
        "exit_code": result.exit_code,
        "dropped_bytes": result.dropped_bytes + dropped_bytes,
        "timed_out": result.timed_out,
        "execution_count": result.execution_count,
        "cwd": result.cwd,
        "resumed": resumption_json(burst.resumption),
        "timings_ms": {"total": round(took_ms, 3)},
    }


def burst_json(burst: Burst, collected: Collector, *, took_ms: float) -> JSON:
    """A burst with its whole output. ``stdout`` is readable always, exact beside a null ``stdout_base64``."""
    return {
        **_stream_json("stdout", collected.stdout),
        **_stream_json("stderr", collected.stderr),
        "display": collected.display,
        **outcome_json(burst, took_ms=took_ms, dropped_bytes=collected.dropped_bytes),
    }


def template_json(template: TemplateRecord) -> JSON:
    """What clients see of a template."""
    return {
        "name": template.name,
        "digest": template.digest,
        "created_at": instant(template.created_at_s),
        "engine_build": template.engine_build,
        "image_bytes": template.image_bytes,
        "shape": dict(template.shape),
    }


def shelved_json(found: Shelved) -> JSON:
    """A template on the shelf: whether its name means it, and how many sessions were made of it."""
    return {**template_json(found.record), "newest": found.newest, "sessions_count": len(found.sessions)}


def garbage_json(report: SweepReport, *, dry_run: bool) -> JSON:
    """What a collection removed, or would, and what waits; by reason."""
    plan = report.plan
    return {
        "dry_run": dry_run,
        "removed": _by_reason(plan.remove if dry_run else report.removed),
        "waiting": _by_reason(plan.wait),
        "spared_count": len(report.spared),
        "headless": [f"{one.tenant}/{one.subject}" for one in plan.headless],
        "blocked": list(plan.blocked),
        "strangers_count": len(plan.strangers),
    }


def _by_reason(garbage: Sequence[Garbage]) -> JSON:
    reasons: dict[str, JSON] = {}
    for one in garbage:
        told = reasons.setdefault(one.reason.value, {"count": 0, "size_bytes": 0})
        told["count"] += 1
        told["size_bytes"] += one.size_bytes
    return {
        "count": len(garbage),
        "size_bytes": sum(one.size_bytes for one in garbage),
        "next_due_at": instant(min(one.due_at_s for one in garbage)) if garbage else None,
        "reasons": reasons,
    }


def error_json(error: TorporError) -> JSON:
    """The one form of every error."""
    return {"code": error.code, "message": error.message, "details": error.details}


def _stream_json(name: str, data: bytes) -> JSON:
    text = text_or_none(data)
    return {
        name: data.decode(errors="replace") if text is None else text,
        f"{name}_base64": base64.b64encode(data).decode() if text is None else None,
    }
