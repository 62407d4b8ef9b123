"""The kubelet's two gRPC interfaces, from .proto files of our own.

The names of packages, services, messages and fields, and the fields' numbers, are the wire
contract. `make proto` generates the modules `deviceplugin_pb2` (v1beta1: plugins register and the
kubelet calls them) and `podresources_pb2` (v1: which pod has which device ids).

- `wire`: the methods of both, for servers and clients over unix sockets.
"""
