"""What is promised is measured, and what is told was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from torpor.apps.bench.suite import ALL, BENCHES

CHECKOUT = Path(__file__).resolve().parents[2]


def figures():
    spec = importlib.util.spec_from_file_location("readme_figures", CHECKOUT / "bench/readme_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_promise_names_a_bench_and_a_result_of_it_and_none_is_missing():
    lines = figures().PROMISE.findall((CHECKOUT / "SPECIFICATION.md").read_text())
    promised = [(name, command) for _, name, command in lines]
    known = [(name, f"torpor bench {bench.command}") for bench in BENCHES.values() for name in bench.promised]
    assert sorted(promised) == sorted(known)


def test_every_row_of_the_specification_is_a_promise():
    rows = [line for line in (CHECKOUT / "SPECIFICATION.md").read_text().splitlines() if line.startswith("| ")]
    promises = [line for line in rows if not line.startswith("| Promise")]
    assert [line for line in promises if not figures().PROMISE.match(line)] == []


def test_readme_and_specification_tell_the_figures_of_the_report_of_record():
    module = figures()
    if not module.REPORT.exists():  # before the first run of `make bench`
        return
    report = json.loads(module.REPORT.read_text())
    for path, render in ((module.README, module.readme), (module.SPECIFICATION, module.specification)):
        assert render(path.read_text(), report) == path.read_text(), path.name


def test_the_figures_that_the_readme_shows_are_promised_ones():
    promised = {name for bench in BENCHES.values() for name in bench.promised}
    assert figures().SHOWN.keys() <= promised


def test_a_run_of_all_benches_leaves_none_out():
    run = {measure.__module__ for measure in ALL}
    assert {bench.measure.__module__ for bench in BENCHES.values()} == run
