"""Traces through the brain: replay, generate, measure, compare.

`openb` reads and replays the lists of the openb trace; `trace` is our own format, `engine` runs it
over time; `compare` runs several strategies and seeds. Paths are always the caller's.
"""
