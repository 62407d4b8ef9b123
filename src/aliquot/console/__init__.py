"""The console: a web page of GPUs, slices and jobs, and the REST API behind it.

That of one machine is a process beside the pool, with the rights of the user who runs it, and talks
to the arbiter and the pool as commands do: whatever happens to it, they do not notice.

- `application`: the ASGI application of one machine.
- `assembly`: what both applications are assembled from.
- `changes`: resizing grants, and submitting jobs.
- `cluster`: the console of a cluster, from the Kubernetes API.
- `console_process`: the process: its folder, its address, and serving.
- `deltas`: what changed between two views.
- `endpoints`: the REST API.
- `guard`: what every request passes first: Host header and sign-in.
- `history_store`: what GPUs and slices used in a month, in a file of limited size.
- `job_view`: jobs as the API shows them.
- `listening`: the address, and serving there.
- `machine_view`: GPUs and grants as the API shows them.
- `openapi`: the OpenAPI document of one machine.
- `openapi_document`: makes such a document of a table of operations.
- `problems`: problem documents.
- `recorder`: what of each reading the history store keeps, and what it answers.
- `request_reading`: requests to values that the document describes.
- `schema`: checks requests against the document.
- `shapes`: the words of both documents, and the schemas that they share.
- `sign_in`: the token, links that work once, sessions, and the console's proof to pages.
- `snapshots`: one view of the machine for all pages, and the last minutes of slices.
"""
