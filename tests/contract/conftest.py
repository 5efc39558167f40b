"""An S3 server on this machine, one for all tests that ask for it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field

import pytest

from torpor.adapters.objects.bucket import BucketObjects
from torpor.adapters.objects.store_place import BucketPlace

BUCKET = "torpor-tests"
# One thread: moto compares and writes in two steps, which S3 does in one.
SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

class Silent(WSGIRequestHandler):
    def log(self, *_): pass

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app),
                     threaded=False, request_handler=Silent)
print(server.port, flush=True)
server.serve_forever()
"""


@dataclass
class S3:
    """The server. ``place`` gives a prefix that no other test has."""

    endpoint: str
    numbers: itertools.count = field(default_factory=itertools.count)

    def place(self, **other) -> BucketPlace:
        return BucketPlace(**{"bucket": BUCKET, "prefix": f"test-{next(self.numbers)}/store",
                              "endpoint": self.endpoint, **other})  # fmt: skip

    def url(self) -> str:
        place = self.place()
        return f"s3://{place.bucket}/{place.prefix}?endpoint={place.endpoint}&region=eu-west-1"


@pytest.fixture(scope="session")
def s3_server():
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        port = server.stdout.readline().strip()
        assert port, "moto did not start"
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30).close()
        yield S3(endpoint)
    finally:
        server.terminate()
        server.wait(timeout=30)
        server.stdout.close()


@pytest.fixture
def s3(s3_server, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    return s3_server


@pytest.fixture
def bucket(s3):
    return BucketObjects(s3.place())
