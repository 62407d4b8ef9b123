"""Allocates resource claims (DRA) on the nodes whose agents run with `--scheduled`.

A device taint keeps all other schedulers from these devices. A pod waits behind a gate, or because
kube-scheduler finds no devices for it. Node and GPUs are chosen as for all single pods, within the
limits of queues; then the claims get their allocation, the gate is removed, and kube-scheduler only
reserves the claims and binds the pod.

- `demand`: what a claim asks for, as a request for GPUs, or why that cannot be decided here.
- `allocation`: what a claim got, as its status says it.
- `refusals`: nodes that a pod is kept from for a while, and what waiting pods were told.
- `controller`: decides for waiting pods and writes the allocations of their claims.
"""
