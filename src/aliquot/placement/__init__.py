"""Which GPUs answer a request: one brain for the machine, the cluster and the simulator.

Nothing here reads a file, a clock or the network. The doors, each a module:

- `demand`: what a request takes of a node, in numbers.
- `snapshot`: an immutable picture of all nodes; `allocations`: a working copy to take from and give
back.
- `chooser`: one request to GPUs, by a named strategy; `explain`: why, and why not there.
- `gangs`, `backfill`, `queues`, `preempt`, `defragment`: all that is about more than one request.
- `machine`: the same for one machine, without numpy.

All but `demand`, `queues` and `machine` need numpy, which is why nothing is imported here.
"""
