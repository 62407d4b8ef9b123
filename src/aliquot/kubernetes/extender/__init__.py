"""The scheduler extender: answers kube-scheduler, plans GPUs and binds pods.

- `authority`: certificates from an authority of the extender's own, in a Secret.
- `bind`: binding a pod together with its plan, and when a binding has to wait.
- `bypass`: events on pods that ask for GPUs and not for Aliquot.
- `certificates`: making and checking certificates.
- `containers`: how the containers of one pod share the GPUs of one node.
- `endpoint`: the EndpointSlice by which the Service points at the leader.
- `messages`: the messages between kube-scheduler and the extender.
- `metrics`: the metrics of the scheduler.
- `node_pods`: writes the pods of each node into its GPUNode, for agents that may read no pods.
- `planner`: which node a single pod gets, with which GPUs, and the reasons if none fits.
- `pods`: pods as the API server has them, whatever a caller says about them.
- `serve`: the HTTPS server of the process: address, certificate, signals.
- `server`: the answers to kube-scheduler's calls: filter, prioritize, bind and preempt.
- `waiting`: pods that fit no node: their events, and when kube-scheduler tries them again.
"""
