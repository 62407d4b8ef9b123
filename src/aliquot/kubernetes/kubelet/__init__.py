"""The kubelet's gRPC interfaces, from .proto files of our own.

The names of packages, services, messages and fields, and the fields' numbers, are the wire
contract. `make proto` generates the modules `deviceplugin_pb2` (v1beta1: plugins register and the
kubelet calls them), `podresources_pb2` (v1: which pod has which device ids),
`pluginregistration_pb2` (v1: the kubelet finds a plugin by its socket), `dra_pb2` (v1: the kubelet
has resource claims prepared) and `dra_health_pb2` (v1alpha1: the health of their devices).

- `wire`: the methods of all, for servers and clients over unix sockets.
"""
