"""A bucket: one process that serves a folder of objects by as much of S3's protocol as our adapter speaks.

For cold resumes: fast enough not to be what is measured (moto reads at 50 to 95 MiB/s), and it counts what it gave.
``python -m torpor.apps.bench.bucket FOLDER`` prints its port; any bucket's name reaches the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape, unescape

import uvicorn

from torpor.adapters.objects.localfs import LocalObjects
from torpor.domain.errors import Corrupt, NotFound, StaleRevision, Unavailable
from torpor.ports.objects import ObjectInfo

COUNT_PATH = "/-/given"  # no bucket's name
LIST_COUNT_MAX = 1000
START_TIMEOUT_S = 30.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_KEY = re.compile(r"<Key>([^<]*)</Key>")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that is served."""

    port: int

    @property
    def variables(self) -> dict[str, str]:
        """What a server's environment needs to use it."""
        url = f"s3://bench/store?endpoint=http://127.0.0.1:{self.port}&region=eu-west-1"
        return {"TORPOR_STORE_URL": url, **CREDENTIALS}

    async def given_bytes(self) -> int:
        """Bytes of objects that it gave so far."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {COUNT_PATH} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return int(answer.rpartition(b"\r\n")[2])


@contextlib.asynccontextmanager
async def bucket_of(folder: Path) -> AsyncIterator[Bucket]:
    """A process that serves the objects of ``folder``, until the block ends. Raises: Unavailable."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            said = await process.stdout.readline()
        if not said.strip():
            raise Unavailable("cannot measure: the bucket's process did not start")
        yield Bucket(int(said))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Application:
    """ASGI. Paths are ``/BUCKET/store/KEY``."""

    def __init__(self, objects: LocalObjects) -> None:
        self._objects = objects
        self._given_bytes = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["path"] == COUNT_PATH:
            await _answer(send, 200, str(self._given_bytes).encode())
            return
        _, _, key = unquote(scope["path"]).lstrip("/").partition("/")
        key = key.removeprefix("store/")
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        query = {
            name: values[0] for name, values in parse_qs(scope["query_string"].decode(), keep_blank_values=True).items()
        }
        try:
            if "list-type" in query:
                await self._list(query, send)
            elif scope["method"] == "PUT":
                await self._put(key, headers, await _body(receive), send)
            elif scope["method"] == "POST" and "delete" in query:
                await self._delete(await _body(receive), send)
            else:
                await self._get(key, headers.get("range"), send, has_body=scope["method"] == "GET")
        except NotFound:
            await _answer(send, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        except Corrupt:
            await _answer(send, 416, b"<Error><Code>InvalidRange</Code></Error>")
        except StaleRevision:
            await _answer(send, 412, b"<Error><Code>PreconditionFailed</Code></Error>")

    async def _get(self, key: str, range_: str | None, send: Send, *, has_body: bool) -> None:
        info = await self._objects.head(key)
        if not has_body:
            await _answer(send, 200, headers={**_about(info), "content-length": str(info.size_bytes)})
            return
        matched = _RANGE.fullmatch(range_ or "")
        if matched is None:
            data, told, status = await self._objects.get(key), _about(info), 200
        else:
            first, last = int(matched[1]), min(int(matched[2]), info.size_bytes - 1)
            if first > last:
                raise Corrupt("the range begins past the end")
            data = await self._objects.get_range(key, offset=first, size=last - first + 1)
            told, status = {**_about(info), "content-range": f"bytes {first}-{last}/{info.size_bytes}"}, 206
        self._given_bytes += len(data)
        await _answer(send, status, data, headers=told)

    async def _put(self, key: str, headers: Mapping[str, str], data: bytes, send: Send) -> None:
        if "if-match" in headers or headers.get("if-none-match") == "*":
            info = await self._objects.put_if(key, data, etag=headers.get("if-match", "").strip('"') or None)
        else:
            info = await self._objects.put(key, data)
        await _answer(send, 200, headers=_about(info))

    async def _delete(self, asked: bytes, send: Send) -> None:
        keys = _KEY.findall(asked.decode())
        for key in keys:
            await self._objects.delete(unescape(key).removeprefix("store/"))
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        text = f"<DeleteResult>{done}</DeleteResult>"
        await _answer(send, 200, text.encode(), headers={"content-type": "application/xml"})

    async def _list(self, query: Mapping[str, str], send: Send) -> None:
        prefix = query.get("prefix", "").removeprefix("store/")
        after = (query.get("continuation-token") or query.get("start-after", "")).removeprefix("store/")
        found = [info async for info in self._objects.list(prefix) if info.key > after]
        page = found[:LIST_COUNT_MAX]
        rest = ""
        if len(found) > len(page):
            rest = f"<NextContinuationToken>store/{escape(page[-1].key)}</NextContinuationToken>"
        contents = "".join(
            f"<Contents><Key>store/{escape(info.key)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{info.etag}&quot;</ETag><Size>{info.size_bytes}</Size></Contents>"
            for info in page
        )
        truncated = f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>"
        text = f"<ListBucketResult><KeyCount>{len(page)}</KeyCount>{truncated}{rest}{contents}</ListBucketResult>"
        await _answer(send, 200, text.encode(), headers={"content-type": "application/xml"})


def _about(info: ObjectInfo) -> dict[str, str]:
    return {"etag": f'"{quote(info.etag)}"', "last-modified": formatdate(0, usegmt=True)}


async def _body(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(data)


async def _answer(send: Send, status: int, data: bytes = b"", *, headers: Mapping[str, str] | None = None) -> None:
    told = {"content-length": str(len(data)), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})


async def _serve(folder: Path) -> None:
    config = uvicorn.Config(Application(LocalObjects(folder)), log_config=None, access_log=False, lifespan="off")
    # By its protocol asyncio knows that answers are not to wait for each other's acknowledgement (40 ms each).
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)  # connections wait there until it serves
        print(listener.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
