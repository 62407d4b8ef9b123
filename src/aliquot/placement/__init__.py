"""Which GPUs answer a request, and which work runs when: one decision for all callers.

One machine, the cluster, the pool and the simulator call this package. Nothing here reads a file, a
clock or the network. Most modules need numpy, which is why nothing is imported here; `core.demand`,
`core.links`, `queues.quota`, `choose.machine` and `core.overcommit` do not.

- `choose`: choosing GPUs for one request by a strategy, and explaining the choice.
- `core`: demands, nodes, allocations and what fits.
- `decide`: which gangs start, when the others are planned to, and who is preempted.
- `elastic`: how many workers each elastic job should have, and which jobs shrink.
- `gangs`: placing gangs now or at a planned start.
- `queues`: whose turn it is: fair share, quotas, limits, and who may preempt whom.
"""
