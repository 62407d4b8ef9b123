"""Elastic jobs on a cluster: `aliquot controller`, which turns ElasticJob objects into pods.

- `allocations`: the cluster's GPUs and which workload has them.
- `apply`: carries out a job's due actions through the API server.
- `codec`: turns a job's state into its status field and back.
- `controller`: observes, steps and applies every job, and decides their sizes.
- `manifests`: the pods and the service of a job: names, variables, gang.
- `observe`: a job's pods as the workers of its state machine: who failed, who was disrupted.
- `run`: assembles the process: watches, leader election, HTTP pages.
- `sizes`: which jobs start, grow and shrink now, by the decision of `placement.elastic`.
- `spec`: reads an ElasticJob's spec as a job.
- `step`: one step of a job's state machine (`model.lifecycle`), and its status.

A worker is a pod NAME-RANK. Its slot is the generation and rank in the pod's labels. The API server
allows no two pods with one name, so no rank has two workers. The workers that one generation adds
are a gang, NAME-GENERATION: the scheduler starts all of them or none. A pod that appears late
belongs to an old generation and is deleted. Pods, service and gangs have owner references to the
job, so Kubernetes deletes them with it.

A program reads notices as files: annotations of its pod, mounted as a downward API volume. It
answers in its container's termination message. It needs neither network nor permissions for that.
"""
