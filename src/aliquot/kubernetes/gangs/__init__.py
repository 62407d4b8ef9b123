"""Gangs on a cluster: pods that start all together or not at all.

- `answers`: what gangs and queues answer kube-scheduler.
- `apply`: a decision over gangs, applied as far as it is still possible.
- `backfill`: the window that planned starts leave for single pods.
- `controller`: the loop of the replica that leads: observe, step, write, act.
- `events`: what people are told about gangs.
- `evictions`: requests that open gates and evict pods.
- `lifecycle`: the state machine of a gang: transitions, guards, and what is due.
- `observe`: what the controller sees of each gang, and the input of a decision.
- `planning`: one decision over all gangs, made in a thread.
- `registry`: the states of all gangs, and the one place that changes them.
- `resume`: how a new leader goes on from what the leader before has written.
- `single_pods`: pods in no gang: the limits of their queues, and planned starts.
- `sizes`: how many members a gang has, by its pods and the objects around them.
- `state`: the immutable values that the state of a gang consists of.
- `store`: Gang objects, written and restored.
- `term`: whether this replica may act.
"""
