"""A guest agent for the fake engine: the real wire protocol over a toy language, pure and deterministic.

Statements, one a line, the last one's value being the result: ``set NAME VALUE``, ``get NAME``, ``incr NAME``,
``fail MESSAGE``, ``print TEXT``, ``draw`` (a number from the last entropy), ``hostname``, ``wait`` (no answer until an
interrupt, a cancel or the end). Shells know the same and keep variables of their own.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torpor_wire import (
    PAYLOAD_BYTES_MAX,
    VERSION,
    Assembler,
    BadMessage,
    Connection,
    DataChannel,
    Frame,
    FrameType,
    Message,
    SendWindow,
    cut,
    flag,
    integer,
    mapping,
    pack,
    text,
    text_mapping,
    texts,
    unpack,
)

OPERATIONS = frozenset({"status", "code", "shell", "interrupt", "execute", "write", "read", "activity", "cpu"})


class _Refusal(Exception):
    """An ERROR answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Waiting(Exception):
    """The burst has no answer yet."""


@dataclass
class _Open:
    """An open request."""

    fields: dict[str, Any]
    body: bytearray = field(default_factory=bytearray)
    window: SendWindow = field(default_factory=SendWindow)
    unsent: bytes = b""
    size: int = 0
    complete: bool = False


@dataclass
class _Memory:
    """Everything that an image holds."""

    connection: Connection = field(default_factory=Connection)
    assembler: Assembler = field(default_factory=Assembler)
    open: dict[int, _Open] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    parked: bool = False
    generation: int = 0
    id_floor: int = 0
    hostname: str = "template"
    entropy: bytes = b"template"
    draws: int = 0
    received_bytes: int = 0


class FakeGuestProgram:
    """Implements FakeProgram of the fake engine. ``filesystem``: absolute path → content, None for a removed one."""

    def __init__(self) -> None:
        self.filesystem: dict[str, bytes | None] = {}
        self._memory = _Memory()
        self._out = bytearray()

    def receive(self, data: bytes) -> bytes:
        """Serve what ``data`` completes; what is written in return."""
        for event in self._memory.connection.receive_data(data):
            if isinstance(event, Frame) and (message := self._memory.assembler.add(event)) is not None:
                self._serve(message)
        out, self._out = bytes(self._out), bytearray()
        return out

    @property
    def parked(self) -> bool:
        """Whether user code stands still."""
        return self._memory.parked

    @property
    def hostname(self) -> str:
        """The session's, once it was told; ``template`` before."""
        return self._memory.hostname

    def dump(self) -> bytes:
        """The memory, a half-received frame included."""
        return pickle.dumps(self._memory)

    def load(self, data: bytes) -> None:
        """Become what ``dump`` gave."""
        self._memory = pickle.loads(data)

    def _serve(self, message: Message) -> None:
        try:
            self._on_message(message)
        except _Refusal as refusal:
            self._answer(message.id, FrameType.ERROR, {"code": refusal.code, "message": str(refusal), "details": {}})
        except BadMessage as error:
            fields = {"code": "invalid_argument", "message": f"cannot serve: {error}", "details": {}}
            self._answer(message.id, FrameType.ERROR, fields)

    def _on_message(self, message: Message) -> None:
        memory = self._memory
        if message.type is FrameType.HELLO:
            memory.open.clear()
            self._send(FrameType.WELCOME, 0, {**self._status(), "nonce": integer(unpack(message.payload), "nonce")})
        elif message.type is FrameType.RESUMED:
            self._on_resumed(message)
        elif memory.parked:
            raise _Refusal("conflict", "cannot serve: the guest is quiesced; only proceed may follow")
        elif message.type is FrameType.QUIESCE:
            self._note(message.id)
            memory.parked = True
            self._send(FrameType.QUIESCED, message.id, {"took_ms": 0.0, "stopped_count": 0, "unparked": []})
        elif message.type is FrameType.REQUEST:
            self._note(message.id)
            fields = unpack(message.payload)
            if text(fields, "op") not in OPERATIONS:
                raise _Refusal("unsupported", f"cannot serve {fields['op']!r}: the fake guest does not know it")
            memory.open[message.id] = _Open(fields)
        elif (request := memory.open.get(message.id)) is not None:
            self._on_part(message, request)

    def _note(self, frame_id: int) -> None:
        if frame_id <= self._memory.id_floor:
            raise _Refusal("conflict", f"cannot open id {frame_id}: it is a repeat")
        self._memory.id_floor = frame_id

    def _status(self) -> dict[str, Any]:
        return {
            "agent_version": "fake",
            "protocol": VERSION,
            "pid": 1,
            "python": "0",
            "contexts": sorted({"default", *(name[5:] for name in self._memory.variables if name.startswith("code:"))}),
            "generation": self._memory.generation,
            "id_floor": self._memory.id_floor,
        }

    def _on_resumed(self, message: Message) -> None:
        memory, fields = self._memory, unpack(message.payload)
        generation, aborted = integer(fields, "generation"), text(fields, "cause") == "aborted"
        if not memory.parked and not aborted and generation != memory.generation:
            raise _Refusal("conflict", "cannot proceed: the guest is not quiesced")
        self._note(message.id)
        reseeded = memory.parked and not aborted
        if reseeded:
            memory.generation, memory.draws = generation, 0
            memory.entropy = bytes.fromhex(text(fields, "entropy"))
            if flag(fields, "clone"):
                memory.hostname = text(fields, "hostname")
            self.filesystem["/run/torpor/generation"] = f"{generation}\n".encode()
            memory.variables.setdefault("env", {}).update(text_mapping(fields, "env"))
        memory.parked = False
        ready = {"generation": memory.generation, "steps_ms": {"fake": 0.0}, "dropped": [], "clock_skew_ms": 0.0}
        self._send(FrameType.READY, message.id, {**ready, "reseeded": ["default"] if reseeded else []})

    def _on_part(self, message: Message, request: _Open) -> None:
        if message.type is FrameType.DATA:
            request.body += message.payload or b""
            self._memory.received_bytes += len(message.payload or b"")
            self._send(FrameType.ACK, message.id, {"total": len(request.body)})
        elif message.type is FrameType.END:
            request.complete = True
            self._operate(message.id, request)
        elif message.type is FrameType.ACK:
            if request.window.acknowledged(integer(unpack(message.payload), "total")):
                self._push_file(message.id, request)
        elif message.type is FrameType.CANCEL:
            del self._memory.open[message.id]

    def _operate(self, frame_id: int, request: _Open) -> None:
        operation = text(request.fields, "op")
        operations: dict[str, Callable[[int, _Open], dict[str, Any]]] = {
            "status": lambda _id, _request: self._status(),
            "code": lambda _id, _request: self._run(_id, _request, f"code:{text(_request.fields, 'context')}"),
            "shell": lambda _id, _request: self._run(_id, _request, f"shell:{text(_request.fields, 'shell')}"),
            "interrupt": self._interrupt,
            "execute": self._execute,
            "write": self._write,
            "activity": lambda _id, _request: self._activity(_id),
            "cpu": lambda _id, _request: {"cpu_s": float(sum(self._memory.counts.values()))},
        }
        if operation == "read":
            self._read(frame_id, request)
        else:
            try:
                self._answer(frame_id, FrameType.RESULT, operations[operation](frame_id, request))
            except _Waiting:
                return

    def _run(self, frame_id: int, request: _Open, place: str) -> dict[str, Any]:
        memory = self._memory
        memory.counts[place] = memory.counts.get(place, 0) + 1
        variables = memory.variables.setdefault(place, {})
        outcome: dict[str, Any] = {"dropped_bytes": 0, "execution_count": memory.counts[place]}
        value: str | None = None
        try:
            for line in request.body.decode().splitlines():
                value = self._statement(frame_id, line, variables)
        except (KeyError, ValueError) as error:
            name, said = type(error).__name__, str(error.args[0])
            outcome["error"] = {"name": name, "value": said, "traceback": f"{name}: {said}\n"}
        else:
            if value is not None:
                outcome["result"] = {"text/plain": value}
        if place.startswith("shell:"):
            outcome |= {"exit_code": int("error" in outcome), "cwd": "/", "execution_count": None}
        return outcome

    def _statement(self, frame_id: int, line: str, variables: dict[str, str]) -> str | None:  # noqa: PLR0911 - one a verb
        verb, _, rest = line.strip().partition(" ")
        match verb:
            case "set":
                name, _, variables_value = rest.partition(" ")
                variables[name] = variables_value
                return None
            case "get":
                return variables[rest]
            case "incr":
                variables[rest] = str(int(variables.get(rest, "0")) + 1)
                return variables[rest]
            case "fail":
                raise ValueError(rest)
            case "print":
                self._out += self._memory.connection.send(
                    Frame(FrameType.DATA, frame_id, f"{rest}\n".encode()[:PAYLOAD_BYTES_MAX], DataChannel.STDOUT)
                )
                return None
            case "draw":
                self._memory.draws += 1
                return hashlib.sha256(self._memory.entropy + str(self._memory.draws).encode()).hexdigest()
            case "hostname":
                return self._memory.hostname
            case "wait":
                raise _Waiting
            case "":
                return None
            case _:
                raise ValueError(f"unknown statement {verb!r}")

    def _activity(self, frame_id: int) -> dict[str, Any]:
        """A second of processor time for each burst that ever ran; waiting ones are in flight."""
        others = [other for other_id, other in self._memory.open.items() if other_id != frame_id]
        return {
            "cpu_s": float(sum(self._memory.counts.values())),
            "stream_in_bytes": self._memory.received_bytes,
            "stream_out_bytes": 0,
            "bursts_count": sum(other.fields.get("op") in {"code", "shell"} for other in others),
            "busiest": [],
        }

    def _interrupt(self, _frame_id: int, request: _Open) -> dict[str, Any]:
        context = text(request.fields, "context")
        error = {"name": "KeyboardInterrupt", "value": "", "traceback": "KeyboardInterrupt\n"}
        for other_id, other in list(self._memory.open.items()):
            if other.complete and other.fields.get("op") == "code" and other.fields.get("context") == context:
                self._answer(other_id, FrameType.RESULT, {"error": error, "dropped_bytes": 0})
        return {}

    def _execute(self, frame_id: int, request: _Open) -> dict[str, Any]:
        line = " ".join(texts(request.fields, "argv")).encode()[: PAYLOAD_BYTES_MAX - 1] + b"\n"
        self._out += self._memory.connection.send(Frame(FrameType.DATA, frame_id, line, DataChannel.STDOUT))
        return {"exit_code": 0, "dropped_bytes": 0, "result": mapping(request.fields, "result")}

    def _write(self, _frame_id: int, request: _Open) -> dict[str, Any]:
        self.filesystem[text(request.fields, "path")] = bytes(request.body)
        return {"size": len(request.body)}

    def _read(self, frame_id: int, request: _Open) -> None:
        content = self.filesystem.get(path := text(request.fields, "path"))
        if content is None:
            raise _Refusal("not_found", f"cannot read {path!r}: there is no such file")
        request.unsent, request.size = content, len(content)
        self._push_file(frame_id, request)

    def _push_file(self, frame_id: int, request: _Open) -> None:
        if not request.complete or request.fields.get("op") != "read":
            return
        while request.unsent and (room := min(request.window.room_bytes, PAYLOAD_BYTES_MAX)):
            piece, request.unsent = request.unsent[:room], request.unsent[room:]
            request.window.sent(len(piece))
            self._out += self._memory.connection.send(Frame(FrameType.DATA, frame_id, piece))
        if not request.unsent:
            self._answer(frame_id, FrameType.RESULT, {"size": request.size})

    def _answer(self, frame_id: int, frame_type: FrameType, fields: dict[str, Any]) -> None:
        self._memory.open.pop(frame_id, None)
        self._send(frame_type, frame_id, fields)

    def _send(self, frame_type: FrameType, frame_id: int, fields: dict[str, Any]) -> None:
        for frame in cut(frame_type, frame_id, pack(fields)):
            self._out += self._memory.connection.send(frame)
