/* Memory of the host in place of the GPU's, in a grant with `spill` (layout.h: ALIQUOT_HOST_SLICE).
 *
 * When the slice is full, allocations get memory of the host that is mapped on the GPU: kernels and copies reach it
 * over the bus, and no page ever faults or moves. It is charged in the ledger of the host as the GPU's memory
 * is in the slice's. What asks for it: memory.c for cuMemAlloc and its kin, with pieces (pieces.h).
 */
#ifndef ALIQUOT_SPILL_H
#define ALIQUOT_SPILL_H

#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

/* What a large allocation leaves of the slice for small ones, and a small one for the shadows (swappable.h) of those
 * on the host. */
#define SPILL_LARGE_LEAVES (UINT64_C(16) << 20)
#define SPILL_SMALL_LEAVES (UINT64_C(8) << 20)

/* Whether this process's grant has it. Precondition of all: the session is joined. */
bool spill_is_on(void);

/* Whether the host can give so much and keep what must stay free there. */
bool spill_host_has(uint64_t bytes);

/* What programs may still take of the host; and of how much. 0 without `spill`. */
uint64_t spill_free_bytes(void);
uint64_t spill_total_bytes(void);

/* The spare: a page of the slice that is charged ahead of need while there are pieces on the host. The driver may take
 * more for itself than allocations left; then a shadow (swappable.h) is charged to the spare. */
void spill_fill_spare(uint32_t slice);
/* Whether there was one: its charge is the caller's. */
bool spill_take_spare(void);
/* The caller did not need it. */
void spill_return_spare(void);
/* A piece on the host was made or has ended (1, -1), or could not be made (0): with the last one the spare ends. */
void spill_count_pieces(int change);

/* How to ask the driver for memory of the host that is near to the device. */
CUmemAllocationProp spill_properties(CUdevice device);

/* The driver answered a request for such memory: a refusal is out of memory to the program. */
CUresult spill_answer(CUresult result);

#endif
