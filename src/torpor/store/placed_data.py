"""Where a part's data lies in its file: its chunks hold the data alone, its file has the zero runs between."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from torpor.domain.snapshot import Part


class PlacedData:
    """Maps offsets in the data of a part to offsets in its file. Pure."""

    def __init__(self, part: Part) -> None:
        self._data_starts: list[int] = []
        self._file_starts: list[int] = []
        data, file = 0, 0
        for zero_count, data_count in part.runs:
            file += zero_count * part.granule_bytes
            if data_count:
                self._data_starts.append(data)
                self._file_starts.append(file)
            data += data_count * part.granule_bytes
            file += data_count * part.granule_bytes
        self._data_ends = [*self._data_starts[1:], data]

    def pieces(self, offset_bytes: int, count_bytes: int) -> Iterator[tuple[int, int]]:
        """(offset in the file, bytes) of the pieces that hold ``count_bytes`` of data from ``offset_bytes`` on."""
        run_index = bisect.bisect_right(self._data_starts, offset_bytes) - 1
        while count_bytes:
            size_bytes = min(count_bytes, self._data_ends[run_index] - offset_bytes)
            yield self._file_starts[run_index] + offset_bytes - self._data_starts[run_index], size_bytes
            offset_bytes += size_bytes
            count_bytes -= size_bytes
            run_index += 1
