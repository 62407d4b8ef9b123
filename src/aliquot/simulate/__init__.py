"""Traces through the brain: replay, generate, measure, compare.

`openb` reads and replays the lists of the openb trace, `openb_jobs` makes jobs under pressure of
them; `trace` is our own format, `engine` runs it over time and `report` puts what came of it into
figures; `elastic` runs it with jobs that are resized, and `ways` puts that beside gangs; `compare`
runs several strategies and seeds; `generate` makes up days. Paths are always the caller's.
"""
