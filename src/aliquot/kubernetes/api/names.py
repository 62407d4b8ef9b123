"""The words of Aliquot on Kubernetes, as people and other programs write them."""

from __future__ import annotations

GROUP = "aliquot.io"
VERSION = "v1alpha1"

# Annotations on pods. The first four may be changed while the pod runs.
POLICY = f"{GROUP}/policy"
PRIORITY = f"{GROUP}/priority"
COMPUTE = f"{GROUP}/compute"
MEMORY = f"{GROUP}/memory"
GPUS = f"{GROUP}/gpus"
MODELS = f"{GROUP}/models"
PLAN = f"{GROUP}/plan"
# Of gangs: labels or annotations on pods; the gate is one of a pod's schedulingGates.
GANG = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
DURATION = f"{GROUP}/duration"
GATE = GANG
ROOM = f"{GROUP}/room"  # when there was room again for a pod that waits: wakes kube-scheduler

QUEUE = f"{GROUP}/queue"  # a label, on pods and namespaces

# Of workers of elastic jobs: labels, and what the controller tells the program in annotations.
JOB = f"{GROUP}/job"
JOB_GENERATION = f"{GROUP}/job-generation"
JOB_RANK = f"{GROUP}/job-rank"
ELASTIC = f"{GROUP}/elastic"  # what its job can do without, and how long it takes to give back
NOTICE = f"{GROUP}/notice"
SIZE = f"{GROUP}/size"

# 256 MiB, the unit in which the kubelet counts GPU memory; a GPU's compute is 100 units.
MEMORY_UNIT = 256 << 20
CORE_UNITS = 100

SCHEDULER = "aliquot"  # who says so in events, and holds the lease
AGENT = "aliquot-node"
CONTROLLER = "aliquot-controller"
