/* Where allocations lie in pieces: large ones have a piece each, small ones share slabs. Calls of the driver
 * only for pieces; what is charged is no matter here (swappable.h). */
#ifndef ALIQUOT_PLACES_H
#define ALIQUOT_PLACES_H

#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

/* Find a place, on the GPU or the host, for an allocation of the current context, whose shadow (swappable.h) the
 * driver has made. */
CUresult places_take(CUcontext context, CUdeviceptr shadow, uint64_t bytes, bool on_host,
                     CUdeviceptr *pointer);
/* Free the allocation's place, and with the last one its piece. */
void places_give(CUdeviceptr address);

/* The driver ends a context: its pieces are kept until it has. `by` tells one such end from others. */
void places_context_ending(CUcontext context, const void *by);
void places_context_ended(const void *by);
/* The driver refused. */
void places_context_stays(const void *by);

struct place {
	CUdeviceptr base; /* of the allocation */
	uint64_t bytes;   /* as asked for */
	CUdeviceptr shadow;
	CUdeviceptr piece;
	uint64_t piece_bytes;
	CUcontext context; /* the allocation ends with it */
	bool is_on_host;   /* its memory is the host's (spill.h) */
};

/* The allocation that has this byte; false: none of ours. */
bool places_find(CUdeviceptr address, struct place *out);

/* The address to ask the driver about instead of this one: a shadow; or one that the driver does not know,
 * for addresses that we have reserved and that belong to no allocation; or the address itself. */
CUdeviceptr places_driver_address(CUdeviceptr address);

/* The same for calls that free a pointer which is none: no shadow may be freed. */
CUdeviceptr places_unknown(CUdeviceptr address);

/* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID of the piece; it stays the same when the memory moves. */
uint64_t places_block_id(CUdeviceptr piece);

/* The piece with this byte cannot leave any more: its memory was handed out. */
void places_fix(CUdeviceptr address);

/* The same, and let others ask for it: the key of the piece, which is `fresh` if it has none yet. */
uint64_t places_share(CUdeviceptr piece, uint64_t fresh);
/* A descriptor of a piece that was shared under this key. The piece may be freed meanwhile. */
CUresult places_export(CUdeviceptr piece, uint64_t key, int *descriptor);

#endif
