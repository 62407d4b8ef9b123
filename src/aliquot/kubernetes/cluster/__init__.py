"""The view of the cluster that the extender, gangs and jobs share.

- `allocations`: what each workload has, and what counts for each queue's quota and limit.
- `budgets`: which pods disruption budgets protect from eviction.
- `cluster`: what is free on all nodes now: allocations of pods, and reservations for pods.
- `constraints`: which nodes accept a pod, by taints, selectors and affinity.
- `demands`: what containers ask for, as demands of `placement`.
- `dra`: what resource claims have, and which pods wait with which of them.
- `elastic`: what elastic jobs can give back to a gang, and how long that takes.
- `gpu_operator`: what the labels of NVIDIA's GPU Operator say about a node.
- `hardware`: a node's GPUs as `placement` knows them.
- `membership`: which gang a pod belongs to, by labels and annotations, and how long it runs.
- `neighbours`: why pods keep each other from GPUs, in a sentence.
- `node_usage`: what pods use of one node's GPUs, by the node's report or by their plans.
- `offered`: the nodes that kube-scheduler offered for a pod, remembered in few bytes.
- `parts`: the parts of GPUs that a pod's containers have, and which pods can be confused.
- `queue_tree`: the tree of queues with their quotas and limits, and mistakes in their specs.
- `queues`: all queues, and which queue a pod is in.
- `snapshot`: the cluster at one moment, for decisions.
- `topology`: racks and blocks by node labels, and accepted pods, cached.
- `usable`: what a usable node is: which nodes can get new pods with GPUs.
- `view`: all of this as one view, fed by watches.
- `watches`: the watches that feed a view.
- `workloads`: live pods that ask for GPUs, and the gangs that they form.
"""
