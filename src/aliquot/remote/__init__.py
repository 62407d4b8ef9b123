"""GPUs of another process, for unmodified PyTorch programs: experimental (docs/remote.md).

A program sends each operator of device cuda to an executor beside the GPU. `bootstrap`, `client`,
`control`, `cuda_functions`, `executor`, `operators`, `session` and `wire` run where PyTorch is and
Aliquot may not be installed: they use the standard library, PyTorch and each other.

- `bootstrap`: the start of a process that has PyTorch and perhaps no Aliquot.
- `client`: the Python half of a client; client.cpp is the compiled one.
- `control`: the control messages of a client, and the global settings.
- `cuda_functions`: the functions of torch.cuda that would ask a driver.
- `executor`: the process beside the GPU that runs one client's operators.
- `greeting`: the first message of each connection, and the answer to it.
- `launch`: running a command whose GPU is remote.
- `library`: building the compiled half of a client.
- `operators`: which of PyTorch's operators a client sends.
- `server`: the server beside the GPUs: a session in a grant for each launcher.
- `session`: the first process of a session: an executor for each process of the program.
- `wire`: the messages between a program and its executor.
"""
