"""Request and answer bodies, for validation and for OpenAPI. The mapping from domain values is in ``wire``."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from torpor.apps.api.tokens import TTL_S, TTL_S_MAX
from torpor.domain.errors import InvalidArgument
from torpor.domain.session import DeadlineAction, Durability, OnResume, Persistence, Policy
from torpor.ports.guest import ProcessSpec
from torpor.services.requests import METADATA_ENTRIES_MAX, ClockChange, CreateRequest, ForkRequest

TIMEOUT_S_MAX = 7 * 24 * 3600.0
DURATION_S_MAX = 10 * 365 * 24 * 3600.0
FORKS_MAX = 64
DEFAULTS = Policy()

Timeout = Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, le=DURATION_S_MAX, allow_inf_nan=False)]
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Pairs = Annotated[dict[str, str], Field(max_length=METADATA_ENTRIES_MAX)]


class Request(BaseModel):
    """A body. Unknown fields are refused: a misspelt option must not be ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ClocksBody(Request):
    """A session's clocks, in seconds; null: never. Those left out of a change stay as they are.

    ``idle_s``: pause after so long without work. ``timeout_s``: run time until ``timeout_action``, standing still while
    paused. ``ttl_s``: delete so long from now. ``retention_s``: delete when paused for so long.
    """

    idle_s: Duration | None = DEFAULTS.idle_s
    timeout_s: Duration | None = DEFAULTS.timeout_s
    timeout_action: Literal["pause", "kill"] = "pause"
    ttl_s: Duration | None = None
    retention_s: Duration | None = DEFAULTS.retention_s
    on_resume: Literal["resume", "rebuild"] = "resume"

    def policy(self) -> Policy:
        """As the services take it."""
        return Policy(
            idle_s=self.idle_s,
            timeout_s=self.timeout_s,
            timeout_action=DeadlineAction(self.timeout_action),
            retention_s=self.retention_s,
            on_resume=OnResume(self.on_resume),
        )

    def change(self) -> ClockChange:
        """As the services take it: what was said, and nothing else."""
        return ClockChange(self.policy(), self.ttl_s, frozenset(self.model_fields_set))


class CreateBody(ClocksBody):
    """A new session. ``get_or_create``: if one of that name exists, that one is answered, with 200, as it is."""

    template: str = "data"
    name: str | None = None
    get_or_create: bool = False
    persistence: Literal["memory", "filesystem", "ephemeral"] = "memory"
    metadata: Pairs = Field(default_factory=dict)
    env: Pairs = Field(default_factory=dict)
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    disk_bytes: Annotated[int, Field(gt=0)] | None = None

    def request(self) -> CreateRequest:
        """As the services take it."""
        return CreateRequest(
            template=self.template,
            name=self.name,
            persistence=Persistence(self.persistence),
            metadata=self.metadata,
            env=self.env,
            policy=self.policy(),
            ttl_s=self.ttl_s,
        )

    def limits(self) -> dict[str, float]:
        """Those that were asked for. They are the template's, frozen with its golden snapshot; others are refused."""
        asked = {"cpus": self.cpus, "memory_bytes": self.memory_bytes, "disk_bytes": self.disk_bytes}
        return {name: value for name, value in asked.items() if value is not None}


class ForkBody(Request):
    """``count`` copies; ``names``: none, or one for each."""

    count: Annotated[int, Field(ge=1, le=FORKS_MAX)] = 1
    names: Annotated[list[str], Field(max_length=FORKS_MAX)] = Field(default_factory=list)
    metadata: Pairs = Field(default_factory=dict)

    def request(self) -> ForkRequest:
        """As the services take it."""
        return ForkRequest(count=len(self.names) or self.count, names=tuple(self.names), metadata=self.metadata)


class PauseBody(Request):
    """``wait``: return once the snapshot is that safe; null returns as soon as the pause is under way."""

    wait: Literal["cache", "disk", "object"] | None = "disk"

    def durability(self) -> Durability | None:
        """As the services take it."""
        return None if self.wait is None else Durability(self.wait)


class ResumeBody(Request):
    """``allow_older``: accept the previous snapshot if the newest cannot be restored."""

    allow_older: bool = False


class CodeBody(Request):
    """Python for a context that keeps its variables."""

    source: str
    context: Label = "default"
    timeout_s: Timeout | None = None


class ShellBody(Request):
    """A command for a shell that keeps its directory and variables."""

    command: str
    shell: Label = "default"
    timeout_s: Timeout | None = None


class ExecBody(Request):
    """A process. ``detach``: do not wait for it."""

    argv: Annotated[list[str], Field(min_length=1)]
    env: Pairs = Field(default_factory=dict)
    cwd: str | None = None
    user: str = "root"
    stdin_base64: str = ""
    timeout_s: Timeout | None = None
    detach: bool = False

    def process(self) -> ProcessSpec:
        """As the services take it. Raises: InvalidArgument for what is not base64."""
        try:
            stdin = base64.b64decode(self.stdin_base64, validate=True)
        except binascii.Error as error:
            raise InvalidArgument(f"cannot read stdin_base64: {error}; send base64", field="stdin_base64") from error
        return ProcessSpec(
            argv=tuple(self.argv),
            env=self.env,
            cwd=self.cwd,
            user=self.user,
            stdin=stdin,
            timeout_s=self.timeout_s,
            detach=self.detach,
        )


class InterruptBody(Request):
    """Which context's running burst."""

    context: Label = "default"


class DirectoryBody(Request):
    """A directory to make; ``mode`` is octal; ``user``: its owner, else root."""

    path: PathText
    mode: Annotated[str, Field(pattern=r"^0?[0-7]{3,4}$")] = "755"
    user: str | None = None


class MoveBody(Request):
    """From where, to where."""

    path: PathText
    to: PathText


class SignalBody(Request):
    """A signal by number; 15 asks to end. ``group``: to the process group it leads."""

    signal: Annotated[int, Field(ge=1, le=64)] = 15
    group: bool = False


class TerminalQuery(BaseModel):
    """A terminal to start (``argv``: a login shell unless given), or with ``pid`` one to attach to again."""

    pid: int | None = None
    from_sequence: Annotated[int, Field(ge=0)] = 0
    argv: list[str] = Field(default_factory=list)
    cwd: str | None = None
    user: str = "root"
    term: str = "xterm-256color"
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24


class SocketCode(CodeBody):
    """``CodeBody`` over a WebSocket."""

    kind: Literal["code"]


class SocketShell(ShellBody):
    """``ShellBody`` over a WebSocket."""

    kind: Literal["shell"]


class SocketExec(ExecBody):
    """``ExecBody`` over a WebSocket."""

    kind: Literal["exec"]


class SocketInterrupt(InterruptBody):
    """``InterruptBody`` over a WebSocket."""

    kind: Literal["interrupt"]


SocketBurst = SocketCode | SocketShell | SocketExec
SocketMessage = Annotated[SocketBurst | SocketInterrupt, Field(discriminator="kind")]


class TokenBody(Request):
    """How long the token may be used."""

    ttl_s: Annotated[float, Field(gt=0, le=TTL_S_MAX, allow_inf_nan=False)] = TTL_S


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
    """How and after how long the session came back. ``outcome``: what of it; ``stepped_down``: why not more."""

    cause: str
    outcome: str
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
