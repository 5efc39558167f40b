"""A real HTTP server in a thread of the tests' process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

END_S = 60


@contextlib.contextmanager
def in_a_thread(serve: Callable[[], Coroutine[Any, Any, None]], servers: list[uvicorn.Server]) -> Iterator[None]:
    """``serve`` runs the one server that is in ``servers``, or puts it there; the block begins once it has started."""
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    while not (servers and servers[0].started):
        assert thread.is_alive(), "the server did not start"
        threading.Event().wait(0.01)
    try:
        yield
    finally:
        servers[0].should_exit = True
        thread.join(END_S)
        assert not thread.is_alive(), "the server did not end"
