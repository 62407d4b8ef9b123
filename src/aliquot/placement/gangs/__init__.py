"""Placing gangs, all members or none, now or at a planned start.

- `backfill`: when each waiting gang starts: planned starts in order, small work in the gaps.
- `domains`: nodes, racks and blocks that may hold a gang, in the order they are tried.
- `plan`: the GPUs of one gang's members, as near to each other as possible.
- `search`: an exhaustive search for small gangs.
- `timeline`: what will be free when.
"""
