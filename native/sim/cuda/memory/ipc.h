/* Linear memory that other processes open by an IPC handle: cuIpcGetMemHandle and its kin. */
#ifndef SIM_IPC_H
#define SIM_IPC_H

#include "cuda/memory/memory.h"

/* Pages of this process are unmapped: give their device memory back, or leave it to the processes that
 * have opened it. */
void ipc_give(uint32_t gpu, uint64_t base, uint64_t bytes);

#endif
