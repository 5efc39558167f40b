"""Put the figures of the report of record into README.md and SPECIFICATION.md, or check that they are those.

``python bench/readme_figures.py`` writes; with ``--check`` it writes nothing and ends with 1 if a figure differs.
``make bench`` makes the report (docs/reports/bench.json) and calls this.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
REPORT = CHECKOUT / "docs/reports/bench.json"
README = CHECKOUT / "README.md"
SPECIFICATION = CHECKOUT / "SPECIFICATION.md"
BLOCK = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)
PROMISE = re.compile(r"^\|([^|]+)\| *`([a-z0-9_.]+)` *\| *`(torpor bench [a-z -]+)` *\|.*$", re.MULTILINE)
SHOWN = {
    "resume_warm_64mb": "resume, warm, request to first output",
    "resume_local_64mb": "resume, local, 64 MB of memory",
    "resume_local_256mb": "resume, local, 256 MB",
    "resume_cold": "resume, cold, 64 MB",
    "pause_stop_256mb": "pause, user code stopped, 256 MB",
    "second_pause_new_share_256mb": "written by a second pause of an idle session, of its image",
    "fork_10": "fork into ten, all ready",
    "exec_create": "create to first output; raw: cold start with numpy, pandas, IPython",
    "exec_code": "`1+1` over HTTP",
    "exec_stdout": "a program's output through the client",
    "exec_upload": "upload of a file",
    "exec_download": "download of it",
    "density_stored": "stored for a paused session with 20 MB of its own, the largest of all",
    "density_server_growth": "memory of the server for each paused session",
    "memory_peak": "memory for storing and reading an image of 2 GiB",
}
NOT_MEASURED = "not yet measured"


def readme(text: str, report: dict[str, Any]) -> str:
    """``text`` with its block of figures made anew."""
    machine = report["machine"]
    by_name = {each["name"]: each for each in report["results"]}
    intro = (
        f"Measured on {machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / 2**30:.0f} GiB, Linux "
        f"{machine['kernel']}, engine {machine['engine'].split('-')[0]}; every figure beside its bound in the same run "
        "([report](docs/reports/bench.json), [all promises](SPECIFICATION.md)):"
    )
    lines = [
        intro,
        "",
        "| | p50 | p95 | n | raw engine | bound | holds |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, what in SHOWN.items():
        if (each := by_name.get(name)) is not None:
            unit = each["unit"]
            raw = "" if each["raw_p50"] is None else figure(each["raw_p50"], unit)
            row = (what, figure(each["p50"], unit), figure(each["p95"], unit), str(each["n"]), raw, *verdict(each))
            lines.append("| " + " | ".join(row) + " |")
    block = "\n".join(lines)
    return BLOCK.sub(lambda match: f"{match[1]}{block}\n{match[2]}", text)


def specification(text: str, report: dict[str, Any]) -> str:
    """``text`` with the measured columns of its tables made anew."""
    by_name = {each["name"]: each for each in report["results"]}

    def row(match: re.Match[str]) -> str:
        each = by_name.get(match[2])
        measured = (NOT_MEASURED, "", "") if each is None else (measured_of(each), *verdict(each))
        cells = (match[1].strip(), f"`{match[2]}`", f"`{match[3]}`", *measured)
        return "| " + " | ".join(cells) + " |"

    return PROMISE.sub(row, text)


def measured_of(each: dict[str, Any]) -> str:
    """The percentile that counts, and of how many samples."""
    value = each[each["bound_on"]]
    return f"{figure(value, each['unit'])} ({each['bound_on']}, n = {each['n']})"


def verdict(each: dict[str, Any]) -> tuple[str, str]:
    """The bound and whether it holds."""
    if each["bound"] is None:
        return "", ""
    sign = "≥" if each["at_least"] else "≤"
    return f"{sign} {figure(each['bound'], each['unit'])}", "yes" if each["holds"] else "**no**"


def figure(value: float, unit: str) -> str:
    """A figure with its unit, as people read it."""
    if unit == "bytes":
        return f"{value / 1e6:.3g} MB"
    if unit == "ratio":
        return f"{value * 100:.2g} %"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def main(arguments: list[str]) -> int:
    """Write or check."""
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    stale = []
    for path, render in ((README, readme), (SPECIFICATION, specification)):
        text = path.read_text(encoding="utf-8")
        wanted = render(text, report)
        if wanted != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(wanted, encoding="utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"{', '.join(stale)} differ from {REPORT.name}: run `python bench/readme_figures.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
