"""A network namespace per instance that nothing can leave, with the same inner address everywhere.

Inside: ``lo`` up, and ``eth0`` (169.254.17.2/30, default route by 169.254.17.1), one end of a veth pair whose other
end ``up0`` is in the same namespace and stays down. So the interface that is part of every image exists, and no route
to anywhere does: what a guest sends is dropped. A pair because the kernel of the reference machine has no ``dummy``
device. runsc takes the address off ``eth0`` when it starts or restores, which an instance does once in its life.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

from torpor.domain.errors import EngineError

INNER_ADDRESS = "169.254.17.2"
INNER_PREFIX_LENGTH = 30
GATEWAY = "169.254.17.1"
INNER_MAC = "02:74:6f:72:70:02"  # locally administered; the same in every instance, as part of an image
INNER_LINK = "eth0"
OUTER_LINK = "up0"

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 2


def make_namespace(pin: Path) -> None:
    """Make the namespace and pin it at ``pin``; blocking, about 20 ms. Nothing is left on failure.

    Raises: EngineError.
    """
    failures: list[BaseException] = []

    def build() -> None:
        try:
            _enter_new_namespace(pin)
            _configure()
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            failures.append(error)

    # unshare moves one thread only, and that one never comes back: so a thread makes the namespace and ends.
    thread = threading.Thread(target=build, name="netns")
    thread.start()
    thread.join()
    if failures:
        remove_namespace(pin)
        raise EngineError(f"cannot make the network namespace {pin}: {failures[0]}") from failures[0]


def remove_namespace(pin: Path) -> None:
    """Let go of the namespace; the kernel removes it with its last process. Idempotent. Raises: EngineError."""
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.umount2(bytes(pin), _MNT_DETACH) == 0:
        pass
    try:
        with contextlib.suppress(FileNotFoundError):
            pin.unlink()
    except OSError as error:
        raise EngineError(f"cannot remove the network namespace {pin}: {error.strerror}") from error


def _enter_new_namespace(pin: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # SAFETY: only the calling thread moves, and it ends after this.
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    pin.touch(mode=0o600)
    if libc.mount(b"/proc/thread-self/ns/net", bytes(pin), None, _MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")


def _configure() -> None:
    from pyroute2 import IPRoute  # noqa: PLC0415 - 0.4 s of imports that no other command pays

    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        netlink.link("add", ifname=INNER_LINK, kind="veth", address=INNER_MAC, peer={"ifname": OUTER_LINK})
        (inner,) = netlink.link_lookup(ifname=INNER_LINK)
        netlink.addr("add", index=inner, address=INNER_ADDRESS, prefixlen=INNER_PREFIX_LENGTH)
        netlink.link("set", index=inner, state="up")
        netlink.route("add", dst="default", gateway=GATEWAY)
