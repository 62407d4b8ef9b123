"""Grants on one node: what a container gets, however it asks for it.

- `grant`: what a container's grant is.
- `allocations`: the node's GPUs, and which grant has how much of which.
- `checkpoint`: the allocations in a file, which outlives the agent.
- `placement`: on which GPUs a grant goes, by its plan or by choice.
- `injection`: whether a container gets them by CDI, and what the kubelet is told.
- `lifecycle`: making grants in the arbiter, and releasing them when their pods have ended.
- `swap`: whether the memory of a container can leave its GPU, and what that takes of its slice.
- `resize`: changing a running pod's grants by its annotations.
"""
