/* The device memory that the program has allocated: what each allocation is charged, and with which
 * context it ends.
 *
 * The model. Every call that allocates charges the slice first (allocation_charge), then calls the
 * driver, then either remembers the allocation or takes the charge back (allocation_finish). Every
 * call that frees takes the allocation out of its map, calls the driver, and then either takes the
 * charge back or remembers the allocation again (allocation_freed). */
#ifndef ALIQUOT_ALLOCATION_H
#define ALIQUOT_ALLOCATION_H

#include "hooked.h"
#include "map.h"

enum allocation_kind {
	ALLOCATION_OWN_PAGES = 1, /* its bytes are charged */
	ALLOCATION_SHARED_PAGE,   /* its page is charged, once for all allocations in it (page.h) */
	ALLOCATION_SMALL_ARRAY,   /* its bytes fill pages that are charged (page.h) */
	ALLOCATION_MANAGED,       /* its bytes are charged, and counted as managed memory */
	ALLOCATION_POOLED,        /* its pool is charged (pool.h) */
};

struct allocation {
	uint64_t key; /* the pointer or handle that the program has */
	uint64_t bytes;
	CUcontext context; /* it ends with this context; NULL: with its pool */
	CUmemoryPool pool; /* of ALLOCATION_POOLED; else NULL */
	uint64_t mark;     /* of its descriptors: exported.h */
	uint64_t shadow;   /* of memory that can leave the GPU: swap/swappable.h; else 0 */
	uint32_t slice;
	enum allocation_kind kind;
};

MAP_OF(allocation_map, struct allocation)

/* By device pointer, by array handle, by handle of imported memory, by a context's limit. */
extern struct allocation_map allocated_pointers, allocated_arrays, allocated_imports,
	allocated_limits;

/* What the driver takes of the GPU's memory for an allocation of `bytes`. */
uint64_t allocation_cost(uint64_t bytes);

/* An allocation that the program asks for: all but its key is known. */
struct allocation_request {
	struct allocation_map *map; /* where it goes */
	uint64_t bytes;
	CUcontext context;
	uint32_t slice;
	enum allocation_kind kind;
	uint64_t shadow;  /* as in struct allocation */
	bool takes_spare; /* its charge is the spare (swap/spill.h) */
};

/* Set what a pointer is charged: its own pages, or the one that it may share. */
void allocation_set_cost(struct allocation_request *request, uint64_t bytes);

/* The bytes of a pitched allocation whose rows are multiples of `granule`; false: it is invalid, and the
 * driver shall answer. */
bool allocation_pitched_bytes(size_t width, size_t height, unsigned element, size_t granule,
                              uint64_t *bytes);

/* Fill in the current context and its slice; false: there is none, and the driver shall answer. */
bool allocation_in_current_context(struct allocation_request *request);

/* Charge the slice; false: the memory does not fit. */
bool allocation_charge(const struct allocation_request *request);
/* The driver answered with `result`: remember the allocation under `key`, or take the charge back.
 * Returns `result`. */
CUresult allocation_finish(const struct allocation_request *request, CUresult result, uint64_t key);

/* The driver answered a request to free an allocation that was taken out of `map` before: take the
 * charge back, or remember it again. NULL: it was not in the map. Returns `result`. Precondition:
 * it is not pooled, or the driver refused. */
CUresult allocation_freed(struct allocation_map *map, const struct allocation *allocation,
                          CUresult result);

/* A descriptor of the allocation at this address was made; false: it is not ours. */
bool allocation_exported(CUdeviceptr base, int descriptor);

/* Remember a pointer that came from a pool. */
void allocation_put_pooled(CUdeviceptr pointer, uint64_t bytes, uint32_t slice, CUmemoryPool pool);

/* Everything that ends with a context, taken out of the maps while the driver destroys it. */
struct context_allocations {
	CUcontext context;
	struct allocation_map pointers, arrays, imports, limits;
};
void allocations_take(CUcontext context, struct context_allocations *out);
/* The driver destroyed the context: take the charges back. */
void allocations_release(struct context_allocations *allocations);
/* It refused: put everything back. */
void allocations_restore(struct context_allocations *allocations);

#endif
