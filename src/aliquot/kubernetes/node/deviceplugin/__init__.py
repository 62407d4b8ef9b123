"""The device plugins: how the kubelet asks for containers' grants, by device ids.

This is one way to the grants of `node.grants`, which knows nothing of it. DRA and CDI can
come beside it.

- `service`: all plugins of a node together, as the agent uses them.
- `plugin`: the gRPC server of one resource.
- `registration`: registering all plugins with the kubelet, and with the next one.
- `device_ids`: the ids of each resource, and how many of them are healthy.
- `allocate`: the answers to Allocate and PreStartContainer.
- `matching`: container matching, which container an Allocate call is for.
"""
