"""The layout of a seed, and the chain that uses it, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from torpor_guest.hold import PARK, SEED_BYTES, TOKEN_BYTES, TWISTER_AT, TWISTER_BYTES, seed_message, token_of
from torpor_guest.procfs import parse_stat

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_a_seed_holds_its_token_and_a_position_that_makes_the_twister_turn():
    message = seed_message(PARK, b"t" * TOKEN_BYTES, bytes(range(256)) * 16, reseed=True)
    assert len(message) == SEED_BYTES
    assert message[:2] == b"P\x01"
    assert token_of(message) == b"t" * TOKEN_BYTES
    end = TWISTER_AT + TWISTER_BYTES
    assert int.from_bytes(message[end - 4 : end], sys.byteorder) == 624


PROGRAM = """
import os, sys, random, ssl, uuid, tempfile, threading
sys.path.insert(0, sys.argv[1])
from torpor_guest.hold import Hold, PARK_SIGNAL, seed_message
import numpy as np
ask, hold, answer = os.pipe(), os.pipe(), os.pipe()
os.set_blocking(ask[0], False)
Hold(ask=ask[0], hold=hold[0], answer=answer[1]).install()
random.seed(1); np.random.seed(1); random.gauss(0, 1); np.random.standard_normal()
flag = sys.argv[2] == 'reseed'
os.write(ask[1], seed_message(b'P', b'a' * 16, bytes(4096), reseed=False))
os.write(hold[1], seed_message(b'P', b'b' * 16, bytes([7]) * 4096, reseed=flag)); os.write(hold[1], b'G')
os.kill(os.getpid(), PARK_SIGNAL)
assert os.read(answer[0], 32) == b'a' * 16 + b'b' * 16
os.kill(os.getpid(), PARK_SIGNAL)  # nobody asks any more: nothing happens
print(random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal(), uuid._node)
"""


def drawn(mode):
    argv = (sys.executable, "-c", PROGRAM, str(SOURCE), mode)
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout.split()


def test_a_parked_process_draws_from_the_seed_it_was_given():
    one, two, kept = drawn("reseed"), drawn("reseed"), drawn("keep")
    assert one == two
    assert not set(one) & set(kept)
    assert kept[:1] != one[:1]
    assert int(one[4]) == int.from_bytes(b"\x07" * 6, "big") | 1 << 40
    assert kept[4] == "None"


def test_a_process_name_may_hold_anything():
    row = parse_stat("12 (a) b (c)) T 7 " + " ".join(str(number) for number in range(5, 40)))
    assert (row.pid, row.parent, row.state, row.is_stopped, row.runs) == (12, 7, "T", True, False)
    assert row.cpu_ticks == 14 + 15 + 16 + 17 - 0
