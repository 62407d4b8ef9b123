"""One machine as a pool: a queue of elastic jobs whose workers outlive the pool process.

- `api`: the HTTP API on loopback.
- `capacity`: which GPUs would be free after a change.
- `client`: the API's client, for the commands.
- `controller`: the loop that observes, steps and applies every job, and decides their sizes.
- `directory`: where a pool stores everything, and how commands find it.
- `encoding`: jobs and their states as JSON.
- `freezer`: the process that freezes or thaws one worker.
- `json_files`: files of one JSON object, replaced atomically.
- `logs`: the output of workers.
- `processes`: processes by PID and start time.
- `progress`: the speed that workers report, and how long a job rests after a resize.
- `schedule`: which jobs start, grow and shrink now, by the decision of `placement.elastic`.
- `slots`: the folder of one worker.
- `store`: jobs and their history in SQLite.
- `supervisor`: the process that runs one worker.
- `up`: brings a pool up.
- `workers`: the workers on this machine: observing them and carrying out `model.actions`.
"""
