"""What a container needs so that its programs run in a grant: a pod's, or one of a plain runtime.

The node agent of Kubernetes and `aliquot slice` use it. A runtime gets it as a CDI device.

- `container_edits`: the mounts, device nodes, variables and hooks of a container with a grant.
- `driver_files`: the driver's files that containers get, by names that outlive its update.
- `device_nodes`: the driver's device nodes, made where they are missing.
- `selinux`: labels of the folders that containers get parts of.
- `cdi`: the CDI specs, by which a container runtime knows all this by a name.
- `published`: the slices and sizes that are published, in a file that outlives a reboot.
- `publishing`: makes, deletes and restores slices that plain containers get by name.
- `size_names`: names of sizes, such as 8gib-30pct.
- `hook`: the program that gives a container of a size its own grant when it starts.
- `mounting`: mounts a folder in a container that is being created.
"""
