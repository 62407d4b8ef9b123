"""Elastic jobs: how many workers each should have. Which of them stop is for `model.lifecycle`.

- `bounds`: the most that jobs could gain, found without checking what fits.
- `exchange`: which job gives workers to which other.
- `feasibility`: whether jobs of some sizes fit on the GPUs together.
- `grow`: free GPUs go to the jobs that gain most.
- `job`: an elastic job, its speed at each size, and what the other modules share.
- `resize`: the decision: which jobs start, grow and shrink, and how often.
- `shrink`: which jobs shrink for a waiting one, and by how much.
- `sizes`: sizes of all jobs, and what they are worth and use.
"""
