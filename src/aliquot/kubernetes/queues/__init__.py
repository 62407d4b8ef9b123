"""The status of Queue objects.

- `status`: what a queue's status says.
- `usage`: what each queue uses, and what waits in it.
- `write`: writes the status.
"""
