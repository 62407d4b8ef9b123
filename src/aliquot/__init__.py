"""Aliquot gives programs exact parts of GPUs.

People use the command `aliquot`. Each package imports only from packages below it
(docs/architecture.md).

- `cli`: the commands.
- `devices`: what this machine has: GPUs, driver, health.
- `kubernetes`: Aliquot on a cluster: scheduler, controller of jobs, and the agent on each node.
- `model`: the values that all packages share, and the state machine of a job.
- `placement`: which GPUs a request or a gang gets and when, and how large elastic jobs are.
- `pool`: one machine as a pool with a queue of jobs.
- `simulate`: replay of traces through placement.
- `slices`: make, watch and resize slices on this machine.
- `worker`: what a job's program may import.
"""

__version__ = "0.1.0"
