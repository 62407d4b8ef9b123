"""Allocates resource claims (DRA) on the nodes whose agents run with `--scheduled`.

A device taint keeps all other schedulers from these devices. A pod waits behind a gate, or because
kube-scheduler finds no devices for it. Nodes and GPUs are chosen as for all single pods and gangs,
within the limits of queues; then the claims get their allocation, the gate is removed, and
kube-scheduler only reserves the claims and binds the pod.

- `demand`: what a claim asks for, as a request for GPUs, or why that cannot be decided here.
- `asked`: what all claims of a pod ask for.
- `allocation`: what a claim got, as its status says it.
- `refusals`: nodes that a pod is kept from for a while, and what it was told.
- `waits`: these of all pods, and their events.
- `write`: writes allocations, takes them back, and opens gates.
- `gang_plan`: where the members of a gang go together, by the decision for all gangs.
- `gangs`: allocates the claims of all members of a gang, or of none.
- `controller`: the loop of the replica that leads, and the decision for single pods.
"""
