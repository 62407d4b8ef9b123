"""Queues: fair share, quotas, limits, and preemption to get quota back.

- `eligibility`: who may preempt whom.
- `eviction_trial`: whether a gang would fit if some running gangs were evicted.
- `preempt`: which gangs to evict for one gang.
- `question`: what a decision is made from.
- `quota`: quotas, borrowing, limits and the fair-share order.
- `reclaim`: the preemptions of one decision, and which elastic jobs shrink instead.
"""
