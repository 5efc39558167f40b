"""Request bodies, for validation and for OpenAPI; answers are in ``answers``."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from torpor.apps.api.tokens import TTL_S, TTL_S_MAX
from torpor.domain.errors import InvalidArgument
from torpor.domain.session import DeadlineAction, Durability, OnResume, Persistence, Policy
from torpor.ports.guest import ProcessSpec, TerminalSize
from torpor.services.requests import METADATA_ENTRIES_MAX, ClockChange, CreateRequest, ForkRequest
from torpor.store.garbage import GRACE_S, KEEP_COUNT

TIMEOUT_S_MAX = 7 * 24 * 3600.0
DURATION_S_MAX = 10 * 365 * 24 * 3600.0
FORKS_MAX = 64
TERMINAL_MAX = 10_000
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
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
        )


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


class ProcessBody(Request):
    """What every process is started with."""

    argv: Annotated[list[str], Field(min_length=1)]
    env: Pairs = Field(default_factory=dict)
    cwd: str | None = None
    user: str = "root"
    stdin_base64: str = ""

    def process(self) -> ProcessSpec:
        """As the services take it. Raises: InvalidArgument for what is not base64."""
        return ProcessSpec(tuple(self.argv), self.env, self.cwd, self.user, _stdin(self.stdin_base64))


class ExecBody(ProcessBody):
    """A process. ``detach``: do not wait for it."""

    timeout_s: Timeout | None = None
    detach: bool = False

    def process(self) -> ProcessSpec:
        """As the services take it. Raises: InvalidArgument for what is not base64."""
        return replace(super().process(), timeout_s=self.timeout_s, detach=self.detach)


def _stdin(sent: str) -> bytes:
    try:
        return base64.b64decode(sent, validate=True)
    except ValueError as error:  # what is not ASCII, too
        raise InvalidArgument(f"cannot read stdin_base64: {error}; send base64", field="stdin_base64") from error


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


class SizeBody(Request):
    """A terminal's size, in characters."""

    columns: Annotated[int, Field(ge=1, le=TERMINAL_MAX)] = 80
    rows: Annotated[int, Field(ge=1, le=TERMINAL_MAX)] = 24

    def size(self) -> TerminalSize:
        """As the guest takes it."""
        return TerminalSize(self.columns, self.rows)


class StartBody(ProcessBody):
    """A process that outlives the request. ``terminal``: on one of that size. ``keep_stdin``: more input may follow."""

    terminal: SizeBody | None = None
    keep_stdin: bool = False


class TerminalQuery(BaseModel):
    """A terminal to start (``argv``: a login shell unless given), or with ``pid`` one to attach to again."""

    pid: int | None = None
    from_sequence: Annotated[int, Field(ge=0)] = 0
    argv: list[str] = Field(default_factory=list)
    cwd: str | None = None
    user: str = "root"
    term: str = "xterm-256color"
    columns: Annotated[int, Field(ge=1, le=TERMINAL_MAX)] = 80
    rows: Annotated[int, Field(ge=1, le=TERMINAL_MAX)] = 24


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


class GarbageBody(Request):
    """``dry_run``: only say. ``grace_s``: least time without use. ``keep``: snapshots of each session that stay."""

    dry_run: bool = False
    grace_s: Annotated[float, Field(ge=0, le=DURATION_S_MAX, allow_inf_nan=False)] = GRACE_S
    keep: Annotated[int, Field(ge=1, le=1000)] = KEEP_COUNT


class TokenBody(Request):
    """How long the token may be used."""

    ttl_s: Annotated[float, Field(gt=0, le=TTL_S_MAX, allow_inf_nan=False)] = TTL_S
