"""Holding a Python process still, from inside it, and giving its generators new state before it moves again.

A signal handler makes the main thread enter *one C call chain that keeps the GIL*: block signals, announce, read the
seed (blocking), reseed, acknowledge, read the word to go, unblock. No byte code of any thread runs in between, so the
process may be captured and copied while it reads, and every copy draws from its own generators. Where a chain is needed
and why SIGSTOP alone is not enough: docs/design/004-guest-agent.md.

Messages have one size, so that a pipe carries each whole:

======== ============ =================================================================================
ask      SEED_BYTES   kind (``P`` park, ``R`` reseed now), then the seed's layout
hold     SEED_BYTES   the seed; then 1 byte: go
answer   TOKEN_BYTES  the ask's token: parked; the seed's token: reseeded; REFUSED: it cannot park
======== ============ =================================================================================

This module runs in the process of the user's code as well as in the agent, and imports nothing of the agent.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, compress, repeat
from typing import Any

PARK_SIGNAL = signal.SIGRTMIN + 7  # real-time signals have no default users; the first few belong to libc and tools
SEED_BYTES = 4096  # PIPE_BUF: written and read whole
TOKEN_BYTES = 16
PARK = b"P"
RESEED = b"R"
REFUSED = bytes(TOKEN_BYTES)

# The seed: byte 0 kind, byte 1 "reseed" (0: go on as before), then these fields.
TOKEN_AT = 16
PYTHON_AT, PYTHON_BYTES = 64, 64
OPENSSL_AT, OPENSSL_BYTES = 128, 32
NODE_AT, NODE_BYTES = 160, 6
GAUSS_AT, GAUSS_BYTES = 168, 4
TWISTER_AT, TWISTER_BYTES = 512, 624 * 4 + 4  # key and position of the Mersenne Twister, as numpy's C struct has them
TWISTER_POSITION = (624).to_bytes(4, sys.byteorder)

Step = Callable[[], object]


def seed_message(kind: bytes, token: bytes, randomness: bytes, *, reseed: bool) -> bytes:
    """A message of SEED_BYTES. ``randomness``: SEED_BYTES fresh bytes, never used for another process."""
    assert len(kind) == 1
    assert len(token) == TOKEN_BYTES
    assert len(randomness) == SEED_BYTES
    message = bytearray(randomness)
    message[0:2] = kind + bytes([reseed])
    message[TOKEN_AT : TOKEN_AT + TOKEN_BYTES] = token
    end = TWISTER_AT + TWISTER_BYTES
    message[end - 4 : end] = TWISTER_POSITION
    return bytes(message)


def token_of(message: bytes) -> bytes:
    """The token in a message."""
    return message[TOKEN_AT : TOKEN_AT + TOKEN_BYTES]


def _lazily(function: Callable[..., object], *arguments: Iterable[Any]) -> Step:
    """A step that computes its arguments when it is called, in C."""
    return partial(next, map(function, *arguments))


class Hold:
    """The process's side. Make it in the main thread; the descriptors stay open for the process's life."""

    def __init__(self, *, ask: int, hold: int, answer: int) -> None:
        self._ask, self._hold, self._answer = ask, hold, answer
        self._libc = ctypes.PyDLL(None)
        for function in (self._libc.read, self._libc.write):
            function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
            function.restype = ctypes.c_ssize_t
        self._libc.pthread_sigmask.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._seed = bytearray(SEED_BYTES)
        self._seed_address = ctypes.addressof(ctypes.c_char.from_buffer(self._seed))
        self._masks = ctypes.create_string_buffer(b"\xff" * 128 + b"\0" * 128, 256)  # all signals; the ones before
        self._word = ctypes.create_string_buffer(TOKEN_BYTES)
        self._done = False
        self._finish = partial(setattr, self, "_done", True)

    def install(self) -> None:
        """Park whenever asked."""
        signal.signal(PARK_SIGNAL, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        try:
            request = os.read(self._ask, SEED_BYTES)
        except BlockingIOError:
            return  # an old signal: what it asked for has been taken back
        late = request[:1] == RESEED
        if late:
            self._seed[:] = request
        interrupt: KeyboardInterrupt | None = None
        collecting = gc.isenabled()
        gc.disable()  # a collection inside the chain could run finalizers, which are byte code
        self._done = False
        while not self._done:
            try:
                self._serve(token_of(request), late=late)
            except KeyboardInterrupt as error:
                interrupt = error  # before the chain it waits until after it; after it, it is the user's as ever
            except BaseException:
                # Fail closed: without its acknowledgement the agent lets nothing go on, and neither do we.
                os.kill(os.getpid(), signal.SIGSTOP)
                raise
        if collecting:
            gc.enable()
        if interrupt is not None:
            raise interrupt

    def _serve(self, token: bytes, *, late: bool) -> None:
        try:
            reseeding = self._reseeding()
        except (AttributeError, LookupError, TypeError, ValueError):  # a library with other insides than we know
            if not late:
                os.write(self._answer, REFUSED)
            self._done = True
            return
        _run(chain(reseeding, (self._finish,)) if late else self._parking(token, reseeding))

    def _parking(self, token: bytes, reseeding: Iterable[Step]) -> Iterable[Step]:
        """The chain. Signals are blocked in it: one that interrupted a read would end the hold."""
        read, write, mask = self._libc.read, self._libc.write, self._libc.pthread_sigmask
        masks, token_at = ctypes.addressof(self._masks), self._seed_address + TOKEN_AT
        self._word.raw = token
        word = ctypes.addressof(self._word)
        return chain(
            (
                partial(mask, signal.SIG_SETMASK, masks, masks + 128),
                partial(write, self._answer, word, TOKEN_BYTES),
                partial(read, self._hold, self._seed_address, SEED_BYTES),
            ),
            reseeding,
            (
                partial(write, self._answer, token_at, TOKEN_BYTES),
                partial(read, self._hold, word, 1),
                self._finish,
                partial(mask, signal.SIG_SETMASK, masks + 128, None),
            ),
        )

    def _reseeding(self) -> Iterable[Step]:
        """The steps for what this process has imported; they run only if the seed says so, decided in C as well."""
        steps = [*self._python(), *self._numpy(), *self._openssl(), *self._names()]
        return compress(steps, map(self._seed.__getitem__, repeat(1)))

    def _field(self, offset: int, count: int) -> memoryview:
        return memoryview(self._seed)[offset : offset + count]

    def _integer(self, offset: int, count: int) -> Iterable[int]:
        from_bytes: Callable[[memoryview, str], int] = int.from_bytes  # type: ignore[assignment]
        return map(from_bytes, repeat(self._field(offset, count)), repeat("big"))

    def _python(self) -> Iterable[Step]:
        if (module := sys.modules.get("random")) is None:
            return
        instance: Any = module._inst  # noqa: SLF001 - the generator behind random.random and its siblings
        # random.Random.seed is byte code around this C method and the line after it.
        seed = sys.modules["_random"].Random.seed
        yield _lazily(partial(seed, instance), self._integer(PYTHON_AT, PYTHON_BYTES))
        yield partial(setattr, instance, "gauss_next", None)

    def _numpy(self) -> Iterable[Step]:
        state: Any = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
        generator: Any = getattr(state, "_bit_generator", None)
        if state is None or type(generator).__name__ != "MT19937":
            return
        # Straight into the C struct: taking numpy's lock could wait for a thread that needs the GIL we keep.
        target = generator.ctypes.state_address
        move = partial(ctypes.PyDLL(None).memmove, ctypes.c_void_p(target))
        twist = partial(move, ctypes.c_void_p(self._seed_address + TWISTER_AT), ctypes.c_size_t(TWISTER_BYTES))
        yield twist
        # seed() also forgets the second normal variate; it takes the lock, so only where nobody holds it. The lock is
        # re-entrant in newer versions: then it is taken around the call, since such a lock cannot be looked at.
        forget, lock = _lazily(state.seed, self._integer(GAUSS_AT, GAUSS_BYTES)), generator.lock
        if hasattr(lock, "_is_owned"):
            free = map(operator.call, repeat(partial(lock.acquire, blocking=False)))
            forget = partial(deque, map(operator.call, (forget, lock.release)), 0)
        else:
            free = map(operator.not_, map(operator.call, repeat(lock.locked)))
        yield partial(deque, map(operator.call, compress((forget,), free)), 0)
        yield twist

    def _openssl(self) -> Iterable[Step]:
        if (module := sys.modules.get("_ssl")) is not None:
            yield partial(module.RAND_add, self._field(OPENSSL_AT, OPENSSL_BYTES), float(OPENSSL_BYTES))

    def _names(self) -> Iterable[Step]:
        if (module := sys.modules.get("uuid")) is not None:
            multicast = map(
                operator.or_, self._integer(NODE_AT, NODE_BYTES), repeat(1 << 40)
            )  # RFC 9562: a random node
            yield _lazily(partial(setattr, module, "_node"), multicast)
            yield partial(setattr, module, "_last_timestamp", None)
            yield partial(setattr, module, "_generate_time_safe", None)  # libuuid caches its node in the C library
        if (module := sys.modules.get("tempfile")) is not None:
            yield partial(setattr, module, "_name_sequence", None)


def _run(steps: Iterable[Step]) -> None:
    """One C call: deque consumes the map, the map calls the steps, and the steps are C functions."""
    deque(map(operator.call, steps), maxlen=0)
