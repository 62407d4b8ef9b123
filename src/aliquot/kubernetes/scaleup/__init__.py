"""Asking a cluster autoscaler for the GPUs that waiting work lacks.

An autoscaler does not see pods with a scheduling gate, and adds free units of a node up: for it,
40 and 40 of a GPU free on two GPUs hold 60. So the leader asks for whole GPUs, away from the nodes
that it counts already: by pods that never run, or by ProvisioningRequests.

- `controller`: creates and deletes what asks, so that the API server has what is wanted.
- `hidden`: which waiting pods an autoscaler does not see, or takes for pods that fit.
- `manifests`: the objects that ask: pods for Karpenter, ProvisioningRequests for others.
- `units`: the GPUs that missing pods need of new nodes: slices are packed onto whole ones.
"""
