"""The parts of lab/fast_bench.py: one file for each kind of question."""
