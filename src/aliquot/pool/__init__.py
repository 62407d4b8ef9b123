"""One machine as a pool: a queue of jobs, a runner that outlives its own death, an API.

- `service`: the loop that looks, decides, writes and acts; `store`: what is written, in SQLite.
- `world`: the machine as a job's controller sees it; `keeper`: the process that keeps one worker.
- `room`: which GPUs would be there; `api` and `client`: the door on loopback.
"""
