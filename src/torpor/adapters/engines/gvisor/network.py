"""A network namespace per instance that nothing can leave, with the same inner address everywhere.

Inside: ``lo`` up, and ``eth0``, one end of a veth pair whose other end ``up0`` is in the same namespace and stays
down. So the interface that is part of every image exists, and no route to anywhere does: what a guest sends is
dropped. A pair because the kernel of the reference machine has no ``dummy`` device.

The address (169.254.17.2/30, default route by 169.254.17.1) is the guest's alone: the host's end must not have it, or
the host would answer in the guest's place. A restore by control socket is told it, together with a packet socket of
``eth0`` that was opened when the namespace was made. A start or restore by command line looks for it on ``eth0``, where
``show_address`` puts it just before, and takes it off again, which an instance does once in its life.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import ipaddress
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from torpor.domain.errors import EngineError

INNER_ADDRESS = "169.254.17.2"
INNER_PREFIX_LENGTH = 30
GATEWAY = "169.254.17.1"
INNER_MAC = "02:74:6f:72:70:02"  # locally administered; the same in every instance, as part of an image
INNER_LINK = "eth0"
OUTER_LINK = "up0"
MTU = 1500

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 2
_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_PACKET_BUFFER_BYTES = 4 << 20
_GSO_BYTES_MAX = 65_536  # of every veth
_QDISC_FIFO = 1


def make_namespace(pin: Path) -> socket.socket:
    """Make the namespace and pin it at ``pin``; blocking, about 20 ms. Nothing is left on failure.

    Returns the packet socket of its ``eth0`` for ``arguments``; the caller closes it. Raises: EngineError.
    """

    def build() -> socket.socket:
        _enter_new_namespace(pin)
        _configure()
        return _packet_socket()

    with contextlib.ExitStack() as undo:
        undo.callback(remove_namespace, pin)
        link = _on_a_thread_of_its_own(build, f"make the network namespace {pin}")
        undo.pop_all()
    return link


def show_address(pin: Path) -> None:
    """Put address and default route on ``eth0``, for a command that looks for them there. Blocking, about 20 ms.

    Idempotent. Raises: EngineError.
    """

    def build() -> None:
        _enter_namespace(pin)
        _address()

    _on_a_thread_of_its_own(build, f"set the address in the network namespace {pin}")


def arguments() -> dict[str, Any]:
    """The network of a restore by control socket, the same that a command finds by itself. Pure.

    One packet socket goes with it. In the sandbox's own words: addresses as text, masks and MACs as base64.
    """
    inner = ipaddress.ip_interface(f"{INNER_ADDRESS}/{INNER_PREFIX_LENGTH}").network
    loopbacks = [ipaddress.ip_interface("127.0.0.1/8"), ipaddress.ip_interface("::1/128")]
    return {
        "LoopbackLinks": [
            {
                "Name": "lo",
                "Addresses": [{"Address": str(each.ip), "PrefixLen": each.network.prefixlen} for each in loopbacks],
                "Routes": [_route(each.network) for each in loopbacks],
            }
        ],
        "FDBasedLinks": [
            {
                "Name": INNER_LINK,
                "MTU": MTU,
                "Addresses": [{"Address": INNER_ADDRESS, "PrefixLen": INNER_PREFIX_LENGTH}],
                "Routes": [_route(ipaddress.ip_network("0.0.0.0/0"), GATEWAY), _route(inner)],
                "GSOMaxSize": _GSO_BYTES_MAX,
                "RXChecksumOffload": True,
                "LinkAddress": base64.b64encode(bytes.fromhex(INNER_MAC.replace(":", ""))).decode(),
                "QDisc": _QDISC_FIFO,
                "NumChannels": 1,
            }
        ],
        "IsRestore": True,
    }


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


def _route(network: ipaddress.IPv4Network | ipaddress.IPv6Network, gateway: str = "") -> dict[str, Any]:
    mask = base64.b64encode(network.netmask.packed).decode()
    return {"Destination": {"IP": str(network.network_address), "Mask": mask}, "Gateway": gateway}


def _on_a_thread_of_its_own(work: Callable[[], T], doing: str) -> T:
    """Entering a namespace moves one thread only, and that one never comes back: so a thread does it and ends."""
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415 - 0.4 s of imports that no command pays

    with ThreadPoolExecutor(1, thread_name_prefix="netns") as thread:
        try:
            return thread.submit(work).result()
        except (OSError, NetlinkError) as error:
            raise EngineError(f"cannot {doing}: {error}") from error


def _enter_new_namespace(pin: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # SAFETY: only the calling thread moves, and it ends after this.
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    pin.touch(mode=0o600)
    if libc.mount(b"/proc/thread-self/ns/net", bytes(pin), None, _MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")


def _enter_namespace(pin: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with pin.open("rb") as namespace:
        # SAFETY: only the calling thread moves, and it ends after this.
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _configure() -> None:
    from pyroute2 import IPRoute  # noqa: PLC0415 - as above

    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        netlink.link("add", ifname=INNER_LINK, kind="veth", address=INNER_MAC, mtu=MTU, peer={"ifname": OUTER_LINK})
        (inner,) = netlink.link_lookup(ifname=INNER_LINK)
        netlink.link("set", index=inner, state="up")


def _address() -> None:
    from pyroute2 import IPRoute  # noqa: PLC0415 - as above

    with IPRoute() as netlink:
        (inner,) = netlink.link_lookup(ifname=INNER_LINK)
        netlink.addr("replace", index=inner, address=INNER_ADDRESS, prefixlen=INNER_PREFIX_LENGTH)
        netlink.route("replace", dst="default", gateway=GATEWAY)


def _packet_socket() -> socket.socket:
    """What the sandbox's stack sends and receives frames by; set up as runsc does it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # no protocol before it is bound: that would be slow
    try:
        end.bind((INNER_LINK, _ETH_P_ALL))
        end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _PACKET_BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _PACKET_BUFFER_BYTES)
    except BaseException:
        end.close()
        raise
    return end
