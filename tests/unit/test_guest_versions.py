"""Hosts and guests of different versions talk: what one does not know costs that call alone."""

import zlib

import pytest

from torpor_wire import Connection, Frame, FrameType, Gap, encode


def altered(frame, sequence, place, value):
    """A frame as a later version may send it: one header byte is another, and the checksum fits."""
    plain = bytearray(encode(frame, sequence).replace(b"\xfd\x02", b"\xfe").replace(b"\xfd\x01", b"\xfd"))
    plain[place] = value
    plain[28:32] = zlib.crc32(bytes(plain[:28])).to_bytes(4, "big")
    return plain[:1] + bytes(plain[1:]).replace(b"\xfd", b"\xfd\x01").replace(b"\xfe", b"\xfd\x02")


@pytest.mark.parametrize(("place", "value"), [(5, 77), (6, 9), (7, 128)])
def test_a_frame_of_an_unknown_kind_channel_or_flag_is_ignored_without_a_gap(place, value):
    receiver = Connection()
    hello, end = Frame(FrameType.HELLO), Frame(FrameType.END, 3)
    data = encode(hello, 0) + bytes(altered(Frame(FrameType.DATA, 1, b"new"), 1, place, value)) + encode(end, 2)
    assert receiver.receive_data(data) == [hello, end]
    assert receiver.receive_data(encode(end, 4))[0] == Gap(3, 4)
