"""The scheduler extender: answers kube-scheduler, plans GPUs and binds pods.

- `bind`: binding a pod together with its plan, and when a binding has to wait.
- `containers`: how the containers of one pod share the GPUs of one node.
- `messages`: the messages between kube-scheduler and the extender.
- `metrics`: the metrics of the scheduler.
- `planner`: which node a single pod gets, with which GPUs, and the reasons if none fits.
- `serve`: the HTTPS server of the process: address, certificate, signals.
- `server`: the answers to kube-scheduler's calls: filter, prioritize, bind and preempt.
- `waiting`: pods that fit no node: their events, and when kube-scheduler tries them again.
"""
