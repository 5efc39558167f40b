"""PID 1 of a test instance: one JSON request per line, one JSON answer per line.

Requests: {"id", "do": "add", "value"}, {"do": "total"}, {"do": "write", "path", "text"}, {"do": "read", "path"},
{"do": "remove", "path"}, and for real engines {"do": "python", "source"}, which answers the variable ``result``.
Answers: {"id", "ok"} or {"id", "error"}. Standard library only: it runs inside the guest, alone.
"""

import json
import os
import select
import traceback
from typing import Any


class Ledger:
    """A total in memory, files on disk."""

    def __init__(self) -> None:
        self.total = 0
        self.variables: dict[str, Any] = {}

    def serve(self, request: dict[str, Any]) -> object:
        """What a request gives."""
        served: object = getattr(self, "do_" + request["do"])(request)
        return served

    def do_add(self, request: dict[str, Any]) -> int:
        """Add to the total."""
        self.total += request["value"]
        return self.total

    def do_total(self, _request: dict[str, Any]) -> int:
        """Give the total."""
        return self.total

    def do_write(self, request: dict[str, Any]) -> None:
        """Write a file."""
        with open(request["path"], "w") as file:
            file.write(request["text"])

    def do_read(self, request: dict[str, Any]) -> str | None:
        """Read a file; None if there is none."""
        if not os.path.exists(request["path"]):
            return None
        with open(request["path"]) as file:
            return file.read()

    def do_remove(self, request: dict[str, Any]) -> None:
        """Remove a file."""
        os.remove(request["path"])

    def do_python(self, request: dict[str, Any]) -> object:
        """Run code that keeps its variables."""
        exec(request["source"], self.variables)
        return self.variables.get("result")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""
        try:
            return {"id": request["id"], "ok": self.serve(request)}
        except BaseException:  # noqa: BLE001 - whatever the code of a test raises is an answer
            return {"id": request["id"], "error": traceback.format_exc(limit=-1)}


def say(answer: dict[str, Any]) -> None:
    """Write all of a line, however long nobody reads: a server that restarts is back soon."""
    rest = (json.dumps(answer) + "\n").encode()
    while rest:
        try:
            rest = rest[os.write(1, rest) :]
        except BrokenPipeError:
            select.select([], [], [], 0.01)


def main() -> None:
    """Serve until the end of time."""
    ledger = Ledger()
    pending = b""
    while True:
        pending += os.read(0, 65536)
        *lines, pending = pending.split(b"\n")
        for line in lines:
            say(ledger.answer(json.loads(line)))


if __name__ == "__main__":
    main()
