"""The values that decisions work on: demands, nodes, what is allocated and what fits.

- `allocations`: the changeable copy of a snapshot: taking and giving back GPUs.
- `demand`: what a worker and a gang ask for, and where they are placed.
- `fit`: which nodes and GPUs fit a demand, and what the others lack.
- `links`: how well GPUs of a node are linked, and the best-linked sets of them.
- `marks`: the marks of slices on GPUs, and which GPUs the wishes of a demand leave.
- `overcommit`: how much memory slices have together that take turns with it, without numpy.
- `snapshot`: nodes and GPUs as read-only arrays.
- `topology`: how near the members of a gang are, by links, racks and blocks.
- `turns`: the slices that take turns with memory, on nodes that allow it.
- `wishes`: which GPUs a demand may use by name, and which slices may be beside it.
"""
