"""The agent of one node: `aliquot node`. It gives containers their parts of the node's GPUs.

- `agent`: assembles all parts and runs them.
- `machine`: the agent's options, and the node's driver and GPUs when it starts.
- `arbiter`: starts the node's arbiter, and starts it again.
- `pods`: the node's pods that ask for GPUs, and events on them.
- `gpunode_pods`: those pods out of the node's GPUNode, without a right to read pods.
- `grants`: what a container gets: allocations, checkpoint, placement, release, resize.
- `deviceplugin`: the device plugins, by which the kubelet asks for grants.
- `dra`: the DRA driver, by which it asks for those of resource claims instead.
- `health`: GPUs that turn unhealthy or recover: their allocations, and events about them.
- `processes`: GPU use outside every grant, and images in which no driver can run.
- `idle`: containers that have GPUs and use none of them.
- `busy`: how much of the time of their GPUs containers really use.
- `parked`: containers whose memory leaves their GPU because they are idle.
- `turns`: containers that take turns with memory, and what the node allows them.
- `tenant_files`: looking safely at the untrusted files of a container.
- `publish`: the node's GPUNode object.
- `metrics`: metrics, liveness and readiness over HTTP.
"""
