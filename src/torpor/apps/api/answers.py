"""Answer bodies, for OpenAPI. The mapping from domain values is in ``wire``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from torpor.services.requests import Outcome


class Error(BaseModel):
    """Every error, whatever the status."""

    code: str
    message: str
    details: dict[str, Any]


class Snapshot(BaseModel):
    """The newest snapshot of a session."""

    sequence: int
    instant: str
    image_bytes: int
    new_bytes: int
    timings_ms: dict[str, float]


class Limits(BaseModel):
    """Caps of a session's instance."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    pids_max: int


class Clocks(BaseModel):
    """How its clocks are set; null: never."""

    idle_s: float | None
    timeout_s: float | None
    timeout_action: str
    retention_s: float | None
    on_resume: str


class Moment(BaseModel):
    """A line of the timeline: where it came to stand, when, and why."""

    at: str
    status: str
    event: str
    reason: str


class SessionAnswer(BaseModel):
    """A session. ``run_deadline_at`` while it runs, ``run_left_s`` while it does not; ``expires_at`` while it rests."""

    id: str
    name: str | None
    status: str
    status_detail: str
    durability: str | None
    generation: int
    operation: int
    template: str
    template_digest: str
    persistence: str
    created_at: str
    running_since: str | None
    paused_at: str | None
    snapshot: Snapshot | None
    compute_s: float
    cpu_s: float
    memory_bytes: int | None
    resumes_count: int
    limits: Limits
    metadata: dict[str, str]
    env_names: list[str]
    clocks: Clocks
    hard_deadline_at: str | None
    run_deadline_at: str | None
    run_left_s: float | None
    expires_at: str | None
    forked_from: str | None
    timeline: list[Moment]
    node: str
    instance: str | None
    last_error: str | None
    last_timings_ms: dict[str, float]


class InspectAnswer(SessionAnswer):
    """A session, and what keeps it awake now."""

    awake_because: list[str]


class Resumed(BaseModel):
    """How and after how long the session came back. ``outcome``: what of it; ``stepped_down``: why not more.

    ``resumed``: memory and disk, as they were. ``restored_older``: both of an earlier snapshot, which the caller had
    allowed. ``restored_filesystem``: the disk, with new processes. ``state_lost``: nothing of an ephemeral session.
    """

    cause: str
    outcome: Outcome
    stepped_down: list[str]
    gap_s: float
    wall_time: str
    tier: str
    generation: int
    attempts: int
    dropped: list[str]
    timings_ms: dict[str, float]


class PlacedAnswer(SessionAnswer):
    """A session that was created or resumed."""

    resumed: Resumed | None


class TokenAnswer(BaseModel):
    """A key that may use one session only. It is shown once and stored nowhere."""

    token: str
    session: str
    expires_at: str


class ForksAnswer(BaseModel):
    """The copies, running."""

    sessions: list[PlacedAnswer]


class PageAnswer(BaseModel):
    """A page of sessions, newest first; give ``cursor`` back for the next one."""

    sessions: list[SessionAnswer]
    cursor: str | None


class CodeFailure(BaseModel):
    """An exception that the code raised."""

    name: str
    value: str
    traceback: str


class BurstSession(BaseModel):
    """Which session a burst ran in."""

    id: str
    name: str | None
    generation: int


class OutcomeAnswer(BaseModel):
    """How a burst ended."""

    session: BurstSession
    result: dict[str, Any] | None
    error: CodeFailure | None
    exit_code: int | None
    dropped_bytes: int
    timed_out: bool
    execution_count: int | None
    cwd: str | None
    resumed: Resumed | None
    timings_ms: dict[str, float]


class BurstAnswer(OutcomeAnswer):
    """A burst with its output. ``stdout_base64`` is null unless the bytes are not UTF-8."""

    stdout: str
    stdout_base64: str | None
    stderr: str
    stderr_base64: str | None
    display: list[dict[str, Any]]


class WrittenAnswer(BaseModel):
    """A file that was written. ``woken``: the session was paused before."""

    path: str
    size_bytes: int
    woken: bool


class FileAnswer(BaseModel):
    """What a path names. ``mode`` is octal; ``target``: of a symlink."""

    path: str
    kind: str
    size_bytes: int
    mode: str
    owner: str
    group: str
    modified_at: str
    target: str | None


class FilesAnswer(BaseModel):
    """A page of a directory, by name; give ``cursor`` back for the next one."""

    entries: list[FileAnswer]
    cursor: str | None


class DirectoryAnswer(BaseModel):
    """``made``: false if it was there."""

    path: str
    made: bool


class ProcessAnswer(BaseModel):
    """A process. ``sequence``: of the next byte of its output, ``oldest_sequence``: of the oldest one still kept."""

    pid: int
    argv: list[str]
    user: str
    terminal: bool
    running: bool
    exit_code: int | None
    started_at: str
    sequence: int
    oldest_sequence: int


class ProcessesAnswer(BaseModel):
    """Processes, in order of start."""

    processes: list[ProcessAnswer]


class TakenAnswer(BaseModel):
    """``taken_bytes``: how much of the input the process was given."""

    taken_bytes: int


class TemplateAnswer(BaseModel):
    """A template."""

    name: str
    digest: str
    created_at: str
    engine_build: str
    image_bytes: int
    shape: dict[str, Any]


class TemplatesAnswer(BaseModel):
    """All templates, by name."""

    templates: list[TemplateAnswer]


class ShelvedAnswer(TemplateAnswer):
    """A template on the shelf. ``newest``: its name means it. ``sessions_count``: those made of it."""

    newest: bool
    sessions_count: int


class Amount(BaseModel):
    """So many objects of so many bytes."""

    count: int
    size_bytes: int


class GarbageAmount(Amount):
    """By reason; ``next_due_at``: when the first of them may go."""

    next_due_at: str | None
    reasons: dict[str, Amount]


class GarbageAnswer(BaseModel):
    """``removed``: what went, or would in a dry run. ``waiting``: what has not been without use for long enough.

    ``spared_count``: came into use meanwhile. ``headless``: subjects whose pointer is lost; rebuild the catalog.
    ``blocked``: manifests that cannot be read, for which no pack goes. ``strangers_count``: not ours, left alone.
    """

    dry_run: bool
    removed: GarbageAmount
    waiting: GarbageAmount
    spared_count: int
    headless: list[str]
    blocked: list[str]
    strangers_count: int


class RebuiltAnswer(BaseModel):
    """``sessions``, ``templates``: inserted. ``renamed``: without their name, which was taken.

    ``older``: inserted as lost, since only an older snapshot opens. ``unpointed``: by their highest manifest.
    ``unreadable``: subjects of which nothing opens, and why.
    """

    sessions: list[str]
    templates: list[str]
    renamed: dict[str, str]
    older: list[str]
    unpointed: list[str]
    known_count: int
    shredded_count: int
    unreadable: dict[str, str]
