"""Queues: whose turn it is by fair share, quotas and limits, and who is preempted for whom.

- `eligibility`: who may preempt whom, by quotas and priorities.
- `eviction_trial`: whether a gang would fit if some running gangs were evicted.
- `preempt`: which running gangs to evict for one gang: the least work lost.
- `question`: what a decision is made from (`DecisionInput`).
- `quota`: quotas, borrowing and limits, and which waiting gang is next by fair share.
- `reclaim`: which waiting gangs preempt now, and which elastic jobs shrink instead.
- `users`: fair share between the users of a queue, by what each has used lately.
"""
