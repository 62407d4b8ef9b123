"""The console of a cluster: the same pages and API, from the Kubernetes API.

The console's account watches nodes, GPUs, queues, gangs, elastic jobs and pods, and cannot write. A
page sends its user's own bearer token with each request. The API server says whose it is
(TokenReview), and what of the watched objects that user may list (SubjectAccessReview): all else
is left out. Details, events and logs are read with the user's token, and changes are made with it.

- `application`: the ASGI application.
- `changes`: what users change, with their own tokens.
- `details`: one job with its pods and events, and logs, read with the user's token.
- `endpoints`: the REST API.
- `entrance`: whose a token is.
- `gpu_view`: nodes, GPUs and grants as the API shows them to one user.
- `job_view`: jobs and queues as the API shows them to one user.
- `openapi`: the OpenAPI document.
- `process`: serving until it is stopped.
- `rights`: what a user may see.
- `stream`: what a page gets live.
- `watched`: the watched objects.
"""
