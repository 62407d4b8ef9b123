"""Dynamic resource allocation (DRA): how the kubelet asks for the grants of resource claims.

This is another way to the grants of `node.grants` than the device plugins. The kubelet names the
claim, so nothing has to be matched: a scheduler has chosen the devices, and the agent makes one
grant of all that a claim got on this node.

- `service`: the driver as the agent uses it.
- `plugin`: the sockets that the kubelet finds, and its calls.
- `devices`: the node's GPUs as devices of ResourceSlices.
- `publish`: keeps the node's ResourceSlices as they should be.
- `allocation`: what a claim got on this node, checked.
- `prepare`: makes the grants of claims, and ends them.
- `status`: size and identity of a grant in its claim's status.
"""
