"""The extender around the brain of `placement`: `aliquot scheduler`.

parts      what a pod's containers have, or will have, of a node's GPUs
rows       a node's GPUs and who has what of them, as a row of the allocations
cluster    all nodes, kept up to date row by row
demands    what containers ask for, in the numbers of the brain
together   the containers of one pod on the GPUs of one node
planner    which nodes have room for a pod, and which GPUs it would get there
bind       a pod gets its node and its plan in one step
waiting    pods that found no room: what they are told, and when they are woken
changes    waiting for the cluster to change
messages   what kube-scheduler and the extender say to each other
metrics    what is counted
server     that over HTTP, with health and metrics
run        all of it together
"""
