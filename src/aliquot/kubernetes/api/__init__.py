"""The API server: requests, watches and events, and the types and names that all parts use.

- `admission`: the queue and the size that a pod was admitted to, annotations.
- `backoff`: how long to wait between failing tries.
- `budget`: the PodDisruptionBudget object.
- `changes`: waiting for the next change.
- `client`: typed requests.
- `decode`: JSON from others to checked values.
- `dra`: the objects of dynamic resource allocation: resource claims and slices.
- `elasticjob`: the ElasticJob object.
- `events`: recording events on objects, without ever blocking.
- `evict`: evicting pods, and refusals by PodDisruptionBudgets.
- `gang`: the Gang object.
- `gpunode`: the GPUNode object.
- `http_server`: a small HTTP server for kube-scheduler's calls, health and metrics.
- `leader`: leader election by a Lease.
- `log`: logging on a cluster.
- `names`: the labels, annotations and component names of Aliquot.
- `neighbours`: which GPUs a pod may use by UUID, and which pods may be beside it.
- `objects`: the other objects, with the fields that Aliquot uses.
- `plan`: the plan of a pod, an annotation.
- `presets`: the resource names by which pods ask for GPUs: ours and those of other projects.
- `queue`: the Queue object.
- `requests`: what the containers of a pod ask for, and which requests are invalid.
- `reviews`: whose a token is, and what a user may do.
- `server`: the address and credentials of an API server.
- `times`: times as Kubernetes writes them.
- `watch`: a copy of all objects of one kind, kept up to date.
"""
