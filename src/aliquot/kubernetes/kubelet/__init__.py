"""The kubelet's two interfaces, by .proto files of our own.

Names of packages, services, messages and fields, and the fields' numbers, are the wire contract.

    deviceplugin   v1beta1: the kubelet registers our plugins and calls them
    podresources   v1: the kubelet tells which pod got which device ids
    wire           the methods of both, for servers and clients over unix sockets

`make proto` makes the _pb2 files.
"""
