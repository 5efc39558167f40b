"""PID 1: reads frames, gives each request a thread, and carries out quiesce and proceed itself.

The main thread is the only reader and never waits for the host or for user code, except inside the resume contract.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from torpor_guest import AGENT_VERSION, files, forwards, tree, watches
from torpor_guest.activity import Meter
from torpor_guest.bursts import Body, Burst, Outcome, Stopwatch
from torpor_guest.commands import Commands
from torpor_guest.contexts import Contexts
from torpor_guest.crew import CREW
from torpor_guest.heap import give_back_freed_memory, keep_freed_memory
from torpor_guest.identity import Notice
from torpor_guest.kept import KeptProcesses
from torpor_guest.logs import Log, Reader
from torpor_guest.outbox import RETRY_S, Outbox, Stream
from torpor_guest.processes import Processes
from torpor_guest.procfs import processes
from torpor_guest.quiesce import Contract
from torpor_guest.settings import Refused, Settings, settings_from
from torpor_guest.shells import Shells
from torpor_wire import (
    PAYLOAD_BYTES_MAX,
    VERSION,
    Assembler,
    BadMessage,
    Connection,
    Event,
    Frame,
    FrameType,
    Message,
    agreed,
    integer,
    text,
    unpack,
)

BURSTS_MAX = 256
READ_BYTES_MAX = 1024 * 1024
MOVED_BYTES_MIN = 1024 * 1024  # since the last quiesce; after less there is nothing worth giving back
LOSSLESS = frozenset({"read", "attach", "logs", "forward", "watch"})  # these producers wait for their reader
BURSTS = frozenset(
    {"code", "shell", "execute"}
)  # what is work while it lasts; other requests are as busy as their bytes
WARMUP_ID = 0
FIRST_BURST = b"1 + 1\n"  # what a first burst imports and compiles belongs to the template as well
Operation = Callable[[Burst], Outcome | dict[str, Any] | None]


class Agent:
    """One agent on one pair of descriptors."""

    def __init__(self, settings: Settings, *, read_fd: int, write_fd: int) -> None:
        self._settings = settings
        self._read_fd = read_fd
        self._connection = Connection()
        self._assembler = Assembler()
        self._outbox = Outbox(self._connection, write_fd)
        self._processes = Processes(contained=settings.contained)
        stopwatch = Stopwatch()
        self._contexts = Contexts(settings, self._processes, stopwatch)
        self._shells = Shells(settings, self._processes, stopwatch)
        self._log = Log()
        self._kept = KeptProcesses(settings, self._processes, self._log)
        self._commands = Commands(settings, self._processes, stopwatch, self._kept)
        self._contract = Contract(settings, self._processes, self._contexts, stopwatch)
        self._bursts: dict[int, Burst] = {}
        self._lock = threading.Lock()
        self._id_floor = 0
        self._orphans = 0
        self._warmup_failure: str | None = None
        self._received_bytes = 0
        self._moved_bytes = 0  # both ways, at the last quiesce
        self._meter = Meter(descendants_of=os.getpid() if settings.contained else None)
        self._queues = {"code": self._contexts.queue, "shell": self._shells.queue}
        self._operations: dict[str, Operation] = {
            "status": lambda _: self._status(),
            "code": self._contexts.run,
            "interrupt": self._contexts.interrupt,
            "shell": self._shells.run,
            "execute": self._commands.execute,
            "start": self._kept.start,
            "processes": self._kept.list,
            "attach": self._kept.attach,
            "input": self._kept.input,
            "resize": self._kept.resize,
            "collect": self._kept.collect,
            "signal": self._kept.signal,
            "logs": lambda burst: Reader(burst, self._log, self._kept.journals).run(),
            "forward": forwards.forward,
            "list": tree.list_folder,
            "stat": tree.stat_path,
            "mkdir": tree.make_folder,
            "move": tree.move,
            "remove": tree.remove,
            "watch": watches.watch,
            "read": lambda burst: {"size": files.read(burst)},
            "write": lambda burst: {"size": files.write(burst)},
            "cpu": lambda _: {"cpu_s": self._meter.cpu_s()},
            "activity": lambda _: self._activity(),
        }

    def run(self) -> None:
        """Serve until the input ends; PID 1 serves for ever, since a server that died may come back."""
        keep_freed_memory(one_arena=True)
        self._log.note(f"agent {AGENT_VERSION} started as pid {os.getpid()}")
        self._processes.run()
        self._outbox.start()
        self._warm_up()
        count = PAYLOAD_BYTES_MAX
        while True:
            data = os.read(self._read_fd, count)
            count = READ_BYTES_MAX if len(data) == count else PAYLOAD_BYTES_MAX
            if data:
                for event in self._connection.receive_data(data):
                    self._on_event(event)
            elif self._settings.contained:
                return
            else:
                threading.Event().wait(RETRY_S)  # nobody holds the other end of the FIFO at the moment

    def end_children(self) -> None:
        """Kill what a contained agent has started."""
        assert self._settings.contained
        for row in processes(descendants_of=os.getpid()):
            try:
                os.kill(row.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _warm_up(self) -> None:
        """Start the default context, and run the template's warm-up in it: a golden snapshot holds both."""
        context = self._contexts.context("default")
        source = self._settings.warmup.read_bytes() if self._settings.warmup.is_file() else b"pass"
        stream = Stream(self._outbox, WARMUP_ID, lossy=True)
        stream.gone = True
        outcome = context.run(Burst(WARMUP_ID, {}, stream, Body(lambda _: None)), source, None, silent=True)
        if outcome.error is not None:
            self._warmup_failure = f"cannot warm up from {self._settings.warmup}: {outcome.error['traceback']}"
            self._log.note(self._warmup_failure)
            print(self._warmup_failure, file=sys.stderr, flush=True)
            return
        context.run(Burst(WARMUP_ID, {}, stream, Body(lambda _: None)), FIRST_BURST, None, silent=True)
        gc.collect()
        gc.freeze()  # as in the contexts: later collections leave these pages alone

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Frame):
            # A gap, or bytes that were no frame: whatever was being sent to us is not whole.
            self._fail_bodies("the channel lost bytes; send it again")
            return
        message = self._assembler.add(event)
        if message is not None:
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        try:
            if message.type is FrameType.HELLO:
                self._on_hello(unpack(message.payload))
            elif message.type is FrameType.RESUMED:
                self._on_resumed(message)
            elif self._contract.is_parked:
                raise Refused(
                    "conflict", "cannot serve: the guest is quiesced; only proceed may follow", reason="parked"
                )
            elif message.type is FrameType.QUIESCE:
                self._outbox.hold(FrameType.QUIESCED, self._new_id(message.id), self._quiesce())
            elif message.type is FrameType.REQUEST:
                self._on_request(message)
            else:
                self._on_part(message)
        except Refused as refusal:
            self._outbox.refuse(message.id, refusal)
        except BadMessage as error:
            self._outbox.refuse(message.id, Refused("invalid_argument", f"cannot serve {message.type.name}: {error}"))

    def _new_id(self, frame_id: int) -> int:
        """Raises: Refused if that id is a repeat."""
        if frame_id <= self._id_floor:
            raise Refused("conflict", f"cannot open id {frame_id}: it is not above {self._id_floor}", reason="repeated")
        self._id_floor = frame_id
        return frame_id

    def _status(self) -> dict[str, Any]:
        if self._warmup_failure is not None:
            raise Refused("guest_error", self._warmup_failure)
        return {
            "agent_version": AGENT_VERSION,
            "protocol": VERSION,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "contexts": self._contexts.names,
            "generation": self._contract.generation,
            "id_floor": self._id_floor,
            "operations": sorted(self._operations),
        }

    def _on_hello(self, fields: dict[str, Any]) -> None:
        nonce = integer(fields, "nonce")
        self._fail_bodies("the host has connected anew")
        self._assembler.clear()
        with self._lock:
            self._bursts.clear()
        limits = agreed(fields)
        offered = {"bulk": limits.fields()} if limits.bulk else {}
        self._orphans += self._outbox.greet({**self._status(), "nonce": nonce, **offered}, limits)

    def _quiesce(self) -> dict[str, Any]:
        moved_bytes = self._received_bytes + self._outbox.streamed_bytes
        if moved_bytes - self._moved_bytes >= MOVED_BYTES_MIN:
            give_back_freed_memory()
        self._moved_bytes = moved_bytes
        return self._contract.quiesce()

    def _on_resumed(self, message: Message) -> None:
        notice = Notice.parse(unpack(message.payload))
        frame_id = self._new_id(message.id)
        dropped = []
        if self._orphans and notice.cause != "aborted":
            dropped.append(f"{self._orphans} bursts went on without their callers; what they answer is not sent")
        ready = self._contract.proceed(notice, dropped)
        self._orphans = 0
        self._log.note(f"went on at generation {self._contract.generation}: {notice.cause}, after {notice.gap_s:.1f} s")
        self._outbox.release(FrameType.READY, frame_id, ready)

    def _on_request(self, message: Message) -> None:
        fields = unpack(message.payload)
        operation = self._operations.get(text(fields, "op"))
        frame_id = self._new_id(message.id)
        if operation is None:
            raise Refused(
                "unsupported", f"cannot serve {fields['op']!r}: this agent ({AGENT_VERSION}) does not know it"
            )
        queue = self._queues.get(fields["op"])
        with self._lock:
            if len(self._bursts) >= BURSTS_MAX:
                raise Refused("quota_exceeded", f"cannot begin: {BURSTS_MAX} bursts are open; let them end first")
            place = queue(fields) if queue is not None else None  # here, since threads start in any order
            stream = self._outbox.open(frame_id, lossy=fields["op"] not in LOSSLESS)
            window_bytes = self._outbox.limits.window_bytes
            body = Body(lambda total: self._outbox.send(FrameType.ACK, frame_id, {"total": total}), window_bytes)
            burst = self._bursts[frame_id] = Burst(frame_id, fields, stream, body, place)
        CREW.run(partial(self._serve, operation, burst))

    def _serve(self, operation: Operation, burst: Burst) -> None:
        """One request, in its own thread. An error of ours is told to the host, and ends nothing else."""
        try:
            answer = operation(burst)
            if isinstance(answer, Outcome):
                burst.answer(answer)
            else:
                burst.stream.finish(FrameType.RESULT, lambda: answer or {})
        except Refused as refusal:
            burst.refuse(refusal)
        except BadMessage as error:
            burst.refuse(Refused("invalid_argument", f"cannot serve {burst.fields['op']}: {error}"))
        except (OSError, ValueError, LookupError, ArithmeticError, RuntimeError, TypeError) as error:
            burst.refuse(Refused("guest_error", f"cannot serve {burst.fields['op']}: {error!r}"))
        finally:
            if burst.place is not None:
                burst.place.leave()
            with self._lock:
                self._bursts.pop(burst.id, None)

    def _on_part(self, message: Message) -> None:
        """A frame of an open id; one of an id that has ended means nothing any more."""
        if message.type is FrameType.ACK:
            if (stream := self._outbox.stream(message.id)) is not None:
                stream.acknowledge(integer(unpack(message.payload), "total"))
            return
        with self._lock:
            burst = self._bursts.get(message.id)
        if burst is None:
            return
        if message.type is FrameType.DATA and message.payload is not None:
            self._received_bytes += len(message.payload)
            burst.body.add(message.payload)
        elif message.type is FrameType.END:
            burst.body.end()
        elif message.type is FrameType.CANCEL:
            self._outbox.abandon(message.id)
            burst.cancel()

    def _fail_bodies(self, why: str) -> None:
        with self._lock:
            bursts = list(self._bursts.values())
        for burst in bursts:
            burst.body.fail(Refused("guest_error", f"cannot take the body: {why}"))

    def _activity(self) -> dict[str, Any]:
        with self._lock:
            bursts_count = sum(burst.fields["op"] in BURSTS for burst in self._bursts.values())
        return {
            **self._meter.sample(),
            "stream_in_bytes": self._received_bytes,
            "stream_out_bytes": self._outbox.streamed_bytes,
            "bursts_count": bursts_count,
        }


def _forget_inherited_signals() -> None:
    """What whoever started us ignored or blocked, as `nohup` and shells' background jobs do, our children would too.

    Python itself ignores two, so that they are errors of the call, and gives them back to what it starts.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main(arguments: list[str]) -> int:
    """Entry of the process."""
    settings = settings_from(arguments)
    if not settings.contained and os.getpid() != 1:
        print("the agent must be PID 1 of a sandbox; for tests: --contained DIR", file=sys.stderr)
        return 2
    _forget_inherited_signals()
    # The protocol moves off 0 and 1, so that nothing we start or load can read from or print into it.
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    agent = Agent(settings, read_fd=read_fd, write_fd=write_fd)
    try:
        agent.run()
    finally:
        if settings.contained:
            agent.end_children()
    return 0
