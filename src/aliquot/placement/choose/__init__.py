"""Choosing GPUs for one request, and explaining the choice.

- `chooser`: the node and GPUs for a request, with costs that are kept up to date.
- `defragment`: which slices to move so that a waiting request fits.
- `explain`: what each node lacks or costs for a request.
- `fgd`: the published fragmentation strategy (FGD), to compare with.
- `forecast`: what is likely to be asked for next, and what a node is worth for it.
- `kept_rows`: what a strategy knows of all nodes, brought up to date where they change.
- `lowest`: the lowest cost of each node by its GPUs, and the tightest GPUs.
- `machine`: choosing on one machine, without numpy.
- `strategies`: how GPUs are weighed: fragmentation, pack, spread and others.
"""
