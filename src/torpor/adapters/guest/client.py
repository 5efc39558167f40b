"""ports.guest.Guest over framed bytes. The conversation is docs/formats/wire-v0.md."""

from __future__ import annotations

from torpor.adapters.guest.answers import (
    activity_from,
    burst_from,
    hello_from,
    notice_fields,
    quiesced_from,
    ready_from,
)
from torpor.adapters.guest.asking import checked, final, limit, text_body
from torpor.adapters.guest.filing import FramedFiles
from torpor.adapters.guest.forwarding import FramedForwards
from torpor.adapters.guest.running import FramedProcesses
from torpor.domain.errors import GuestError
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel
from torpor.ports.guest import (
    Activity,
    BurstResult,
    Cause,
    GuestHello,
    Notice,
    OnOutput,
    ProcessSpec,
    QuiesceReport,
    ReadyReport,
)
from torpor_wire import FrameType, number


class FramedGuest(FramedFiles, FramedProcesses, FramedForwards):
    """One connected guest. Make it with FramedDialer. It greets by itself before the first request."""

    async def hello(self) -> GuestHello:
        """See ports.guest.Guest."""
        welcome = await self._greet()
        if welcome is not None:
            return checked(hello_from, welcome)
        return checked(hello_from, await self._ask({"op": "status"}))

    async def code(
        self,
        source: str,
        *,
        context: str = "default",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> BurstResult:
        """See ports.guest.Guest. Raises: InvalidArgument beyond 16 MiB."""
        fields = {"op": "code", "context": context, "timeout_s": limit(timeout_s)}
        return checked(burst_from, await self._ask(fields, text_body(source, "source"), on_output))

    async def interrupt(self, *, context: str = "default") -> None:
        """See ports.guest.Guest."""
        await self._ask({"op": "interrupt", "context": context})

    async def shell(
        self, command: str, *, shell: str = "default", timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> BurstResult:
        """See ports.guest.Guest. Raises: InvalidArgument for a NUL byte or beyond 16 MiB."""
        fields = {"op": "shell", "shell": shell, "timeout_s": limit(timeout_s)}
        return checked(burst_from, await self._ask(fields, text_body(command, "command"), on_output))

    async def execute(self, process: ProcessSpec, *, on_output: OnOutput | None = None) -> BurstResult:
        """See ports.guest.Guest. The pid of a detached process is its result's ``text/plain``."""
        fields = {
            "op": "execute",
            "argv": list(process.argv),
            "env": dict(process.env),
            "cwd": process.cwd,
            "user": process.user,
            "timeout_s": limit(process.timeout_s),
            "detach": process.detach,
        }
        return checked(burst_from, await self._ask(fields, process.stdin, on_output))

    async def collect(self, pid: int, *, on_output: OnOutput | None = None) -> BurstResult:
        """What a detached process has written since it was last collected; ``exit_code`` is None while it runs.

        Raises: NotFound.
        """
        return checked(burst_from, await self._ask({"op": "collect", "pid": pid}, on_output=on_output))

    async def cpu_s(self) -> float:
        """See ports.guest.Guest."""
        return checked(lambda fields: number(fields, "cpu_s"), await self._ask({"op": "cpu"}))

    async def activity(self) -> Activity:
        """See ports.guest.Guest."""
        return checked(activity_from, await self._ask({"op": "activity"}))

    async def quiesce(self, *, timeout_s: float = 5.0) -> QuiesceReport:
        """See ports.guest.Guest. On a time-out the channel stays parked: only ``proceed`` may follow."""
        await self._greet()
        call = self._link.open()
        self._link.send(FrameType.QUIESCE, call.id, {})
        self._link.park()
        try:
            answer = await self._link.within(timeout_s, call, "quiesce")
        finally:
            self._link.forget(call)
        if answer.type is FrameType.ERROR:
            self._link.unpark()  # the guest has let everything go on by itself
        return checked(quiesced_from, final(answer, FrameType.QUIESCED))

    async def proceed(self, notice: Notice, *, timeout_s: float = 10.0) -> ReadyReport:
        """See ports.guest.Guest."""
        await self._greet()
        call = self._link.open()
        self._link.send_parked(FrameType.RESUMED, call.id, notice_fields(notice))
        try:
            answer = await self._link.within(timeout_s, call, "proceed")
        finally:
            self._link.forget(call)
        report = checked(ready_from, final(answer, FrameType.READY))
        if notice.cause is not Cause.ABORTED and report.generation != notice.generation:
            raise GuestError(f"cannot proceed: the guest is at generation {report.generation}, not {notice.generation}")
        self._link.unpark()
        return report

    async def close(self) -> None:
        """See ports.guest.Guest."""
        await self._link.close()


class FramedDialer:
    """ports.guest.GuestDialer for agents that speak torpor_wire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connect(self, instance: InstanceId, channel: Channel) -> FramedGuest:
        """See ports.guest.GuestDialer. Needs a running event loop."""
        return FramedGuest(instance, channel, self._clock)
