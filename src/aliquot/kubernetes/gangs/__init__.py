"""Gangs on a cluster: pods that start all together or not at all.

- `answers`: what kube-scheduler is told about a gang's pod: its node, and when to bind it.
- `apply`: reserves and evicts by a decision, as far as that is still possible.
- `backfill`: the window that planned starts leave for single pods.
- `controller`: the loop of the replica that leads: observe, step, write, act.
- `cpu_preemption`: what kube-scheduler may evict for a pod that finds no CPU.
- `events`: the events and messages about gangs.
- `evictions`: the requests that open gates and evict pods, and refusals of evictions.
- `growth`: whether the queues of running pods let them grow by their annotations.
- `lifecycle`: the state machine of a gang: when it gives up, opens gates, evicts; deadlines.
- `missing`: which members would need GPUs that the cluster does not have.
- `observe`: whether a gang may be planned yet, and the input of a step and of a decision.
- `planning`: when all gangs are decided again: in a thread, and only if something changed.
- `preempting`: single pods that may preempt: they become gangs of one.
- `registry`: the states of all gangs, and the one place that changes them.
- `resume`: how a new leader goes on from what the leader before has written.
- `single_pods`: pods in no gang: whether queue limits and planned starts let them start.
- `sizes`: how many members a gang has, and whether all exist: pods, PodGroups, JobSets.
- `state`: the immutable values of a gang's state: progress, reservation, eviction, retry.
- `store`: Gang objects: written for people and the next leader, and restored.
- `term`: whether this replica may act.
"""
