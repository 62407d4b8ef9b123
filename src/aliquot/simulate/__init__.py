"""Replay of traces through `placement`: generated days, openb, and our own format.

File paths always come from the caller.

- `compare`: several strategies and seeds side by side.
- `elastic`: a trace over time in which jobs are resized.
- `engine`: a trace over time, decided by `placement.decide`.
- `generate`: generated clusters and days of work, the same for the same seed.
- `openb`: replay of the openb trace: requests arrive one by one and stay.
- `openb_jobs`: jobs made from the openb list for a full cluster.
- `plot`: lines as an SVG file.
- `report`: the outcome of many gangs in a few figures.
- `rows`: CSV lines, read strictly.
- `trace`: our own trace format.
- `turns`: programs whose memory takes turns on the GPUs of one machine.
- `ways`: the same jobs run first-come, with backfill and elastic.
- `world`: the cluster of a simulation, and the record of its run.
"""
