"""The scheduler extender: answers kube-scheduler, plans GPUs and binds pods.

- `bind`: binding a pod together with its plan.
- `containers`: placing the containers of one pod on one node.
- `messages`: the messages between kube-scheduler and the extender.
- `metrics`: the metrics of the scheduler.
- `planner`: which nodes a pod fits, and which GPUs it gets.
- `serve`: the HTTPS server of the process.
- `server`: the HTTP API for kube-scheduler.
- `waiting`: pods that fit no node, their events and their next try.
"""
