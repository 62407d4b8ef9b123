"""The agent of one node: `aliquot node`.

books       cards, who holds what of them, and how many device ids of each resource are healthy
held        what a container holds, as it is kept in a file
match       which container an Allocate call is for
allocate    Allocate and PreStartContainer: from device ids to cards, grants and mounts
container   what a container gets: mounts, devices, environment
grants      grants in the arbiter: made, changed and ended with containers
identity    which pod holds which ids, by the kubelet's word
release     what a pod held comes back when it is gone
resize      annotations on a running pod
strangers   who uses a GPU outside every grant, and images that cannot be held
plugin      one device plugin for each resource, registered with the kubelet
publish     the node's GPUNode object
status      metrics, liveness and readiness over HTTP
agent       all of it together
"""
