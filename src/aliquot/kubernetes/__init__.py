"""Aliquot on a Kubernetes cluster.

The way of a pod: kube-scheduler asks the extender which nodes a pod fits. The extender plans GPUs
by what GPUNodes and bound pods say, and writes the plan into the pod when it binds it. The kubelet
asks the agent's device plugins for devices. The agent finds the pod that they are for, makes a
grant on the planned GPUs and starts the container with it. The agent reports the grant in the
node's GPUNode, and the scheduler corrects its allocations by that.

- `api`: the API server, and the objects and names that all parts use.
- `cluster`: the shared view of nodes, GPUs, allocations and queues: what is free and usable.
- `dra`: allocates resource claims where no other scheduler may.
- `extender`: the scheduler extender: which node and GPUs a pod gets, and its binding.
- `gangs`: gangs, which start as a whole or not at all: reservations and evictions.
- `jobs`: the controller of elastic jobs (`aliquot controller`).
- `kubelet`: the messages of the kubelet.
- `node`: the agent on each node (`aliquot node`): gives containers their grants.
- `queues`: the status of Queue objects; quotas and limits are decided in `placement.queues`.
- `scaleup`: asks a cluster autoscaler for the GPUs that waiting work lacks.
- `scheduler`: assembles the process of `aliquot scheduler`.
"""
