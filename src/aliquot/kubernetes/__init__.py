"""Aliquot on a Kubernetes cluster: one agent on each node, one scheduler extender.

    names      resources, annotations and labels, as people write them
    presets    the same names as other projects have them
    pods       what the containers of a pod ask for
    plan       which GPUs the scheduler gives to a pod, written into its binding
    gpunode    what a node tells the cluster of its GPUs and who holds them
    api        the API server: requests, lists and watches, events, leader election
    node       the agent: device plugins, grants, health            (aliquot node)
    scheduler  the extender around the brain of `placement`        (aliquot scheduler)
    jobs       elastic jobs                                         (aliquot controller)

The way of a pod. kube-scheduler asks the extender which nodes have room; the extender plans GPUs by
what `GPUNode` objects and bound pods say, and its bind writes the plan into the pod. The kubelet
asks the agent's device plugins for units; the agent knows the pods of its node, finds whose units
they are, makes a grant on the planned GPUs and gives the container the stand-ins and the grant.
What it gave is in the node's `GPUNode`, by which the scheduler corrects its allocations.
"""
