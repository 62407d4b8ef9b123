"""Elastic jobs on a cluster: `aliquot controller`.

objects     the `ElasticJob` object, and pods and services as they are read and made here
form        what people wrote, as the job that `model` knows
memory      what the controller remembers of a job, in its status
sight       a job's pods, as the state machine of `model.lifecycle` sees workers
step        what follows from a look: the state machine's word, and what people are told
manifests   the pods and the service of a job
deeds       what the state machine wants done, done by the API server
ledger      the cluster's GPUs and who has them
room        whether jobs of these sizes would fit on the cluster together
sizes       the picture for `placement.elastic`, and its answer
controller  all of it, again and again, in the replica that leads
run         the process

A worker is a pod, NAME-RANK, and its slot is the pod's generation and rank: the API server lets no
two pods have a name, so no rank has two workers. The workers that a generation adds are a gang of
their own, NAME-GENERATION, which the scheduler starts all together or not at all; a pod that comes
late belongs to a generation that is over, and is taken away. Pods, service and gangs belong to the
job by owner references, and go with it.

What a program is told stands in annotations of its pod, which a volume shows it as files. What it
says comes back in its container's termination message. It needs no network and no rights for
either.
"""
