"""The view of the cluster that the extender, gangs and jobs share.

- `allocations`: what each workload and each queue has.
- `cluster`: the GPUs of all nodes, with allocations and reservations.
- `constraints`: which nodes accept a pod, by taints, selectors and affinity.
- `demands`: what containers ask for, as demands of `placement`.
- `elastic`: what elastic jobs can give back.
- `hardware`: a node's GPUs as `placement` knows them.
- `membership`: which gang a pod belongs to.
- `node_usage`: what pods use of one node's GPUs.
- `parts`: the parts of GPUs that a pod's containers have.
- `queue_tree`: the tree of queues, and mistakes in their specs.
- `queues`: all queues, and which queue a pod is in.
- `snapshot`: the cluster at one moment, for decisions.
- `topology`: racks and blocks, and accepted pods, cached.
- `usable`: which nodes can get new pods with GPUs.
- `view`: all of this as one view, fed by watches.
- `watches`: the watches that feed a view.
- `workloads`: live pods that ask for GPUs, and the gangs that they form.
"""
