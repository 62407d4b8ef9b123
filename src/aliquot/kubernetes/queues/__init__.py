"""Queues: whose work it is, what is its own, and what it has.

spec     the `Queue` object's fields
known    all queues as watches tell of them: which queue a pod is in, and what is wrong with one
status   what a queue's status is to say
write    and says it
"""
