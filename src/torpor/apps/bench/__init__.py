"""Benchmarks: ours beside the raw engine in the same run, with correctness asserted on every repetition."""
