"""Benchmarks: each compares two things in one run and prints a ratio, because timings on shared machines are noisy."""
