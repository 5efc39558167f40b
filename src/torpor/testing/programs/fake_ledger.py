"""The ledger's twin for the fake engine."""

from __future__ import annotations

import json
from typing import Any

from torpor.adapters.engines.fake import Delta

LOWER = {"/etc/passwd": b"root:x:0:0::/root:/bin/sh\n"}  # what the root filesystem holds below the overlay


class FakeLedger:
    """Implements FakeProgram: the requests of ``ledger`` but for ``python``."""

    def __init__(self) -> None:
        self.filesystem: Delta = {}
        self._total = 0
        self._pending = b""

    def receive(self, data: bytes) -> bytes:
        """Serve each whole line."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        return b"".join(self._answer(json.loads(line)) for line in lines)

    def dump(self) -> bytes:
        """The total, and the part of a line that was read."""
        return json.dumps({"total": self._total, "pending": self._pending.decode()}).encode()

    def load(self, data: bytes) -> None:
        """See FakeProgram."""
        state = json.loads(data)
        self._total, self._pending = state["total"], state["pending"].encode()

    def _answer(self, request: dict[str, Any]) -> bytes:
        try:
            answer = {"id": request["id"], "ok": self._serve(request)}
        except (KeyError, ValueError) as error:
            answer = {"id": request["id"], "error": repr(error)}
        return json.dumps(answer).encode() + b"\n"

    def _serve(self, request: dict[str, Any]) -> object:
        match request["do"]:
            case "add":
                self._total += request["value"]
                return self._total
            case "total":
                return self._total
            case "write":
                self.filesystem[request["path"]] = request["text"].encode()
                return len(request["text"])
            case "read":
                data = self.filesystem.get(request["path"], LOWER.get(request["path"]))
                return None if data is None else data.decode()
            case "remove":
                self.filesystem[request["path"]] = None
                return None
            case unknown:
                raise ValueError(unknown)
