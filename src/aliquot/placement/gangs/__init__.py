"""Placing gangs, all members or none, now or at a planned start.

- `backfill`: planned starts in fair-share order, and small work in the gaps before them.
- `domains`: nodes, racks and blocks that may hold a gang, in the order they are tried.
- `plan`: placements for one gang on the allocations as they are.
- `search`: an exhaustive search for small gangs.
- `timeline`: what will be free when.
"""
