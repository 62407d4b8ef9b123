"""The names of labels, annotations and components of Aliquot on Kubernetes."""

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
NOT_MODELS = f"{GROUP}/not-models"
MIN_STRENGTH = f"{GROUP}/min-strength"
GPU_UUIDS = f"{GROUP}/gpu"
NOT_GPU_UUIDS = f"{GROUP}/not-gpu"
LABEL = f"{GROUP}/label"  # of this namespace; the three after it name labels, or nobody
WITH = f"{GROUP}/with"
APART_FROM = f"{GROUP}/apart-from"
ALONE = f"{GROUP}/alone"
OVERCOMMIT = f"{GROUP}/overcommit"  # label of a node: how many times a GPU's memory
SWAP = f"{GROUP}/swap"  # its memory can leave its GPU
PARK_AFTER = f"{GROUP}/park-after"  # and does when it is idle
TOGETHER = f"{GROUP}/together"  # pods of one namespace with the same value hold GPUs together
PLAN = f"{GROUP}/plan"
# For gangs: labels or annotations on pods; DURATION is an annotation only. GATE is one of a pod's
# schedulingGates, and so is the gate of pods whose resource claims are not allocated yet.
GANG = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
DURATION = f"{GROUP}/duration"
GATE = GANG
RESOURCE_CLAIMS_GATE = f"{GROUP}/resource-claims"

RETRY = f"{GROUP}/retry"  # written to make kube-scheduler try a waiting pod again
PREEMPTS = f"{GROUP}/preempts"  # the UID of a waiting single pod that may preempt others

SCHEDULE = f"{GROUP}/schedule"  # a label on namespaces: their pods with GPUs are ours
# For autoscalers: a label of pods that ask for nodes and never run, and one of nodes whose GPUs are
# counted already.
PLACEHOLDER = f"{GROUP}/placeholder"
COUNTED = f"{GROUP}/counted"

QUEUE = f"{GROUP}/queue"  # a label, on pods and namespaces
ADMITTED_QUEUE = f"{GROUP}/admitted-queue"  # an annotation that comes with the binding
ADMITTED_SIZE = f"{GROUP}/admitted-size"  # an annotation: the scheduler lets the pod grow to this

# For workers of elastic jobs: labels, and annotations by which the controller informs programs.
JOB = f"{GROUP}/job"
JOB_GENERATION = f"{GROUP}/job-generation"
JOB_RANK = f"{GROUP}/job-rank"
ELASTIC = f"{GROUP}/elastic"  # what the job can give back, and how long that takes
NOTICE = f"{GROUP}/notice"
SIZE = f"{GROUP}/size"

# 256 MiB, the unit in which the kubelet counts GPU memory; a GPU's compute is 100 units.
MEMORY_UNIT = 256 << 20
CORE_UNITS = 100

SCHEDULER = "aliquot"  # the components, as events name them
AGENT = "aliquot-node"
CONTROLLER = "aliquot-controller"
