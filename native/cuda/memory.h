/* Memory that a pointer or an array stands for: charged to the slice, tied to a context. */
#ifndef ALIQUOT_MEMORY_H
#define ALIQUOT_MEMORY_H

#include "hooked.h"
#include "table.h"

#include <stdint.h>

/* What stands for memory that dies with its context. */
extern struct table memory_pointers, memory_arrays, memory_imports;

/* What the driver takes of the card for an allocation of `bytes`. */
uint64_t memory_cost(uint64_t bytes);

/* Give back all that died with a context. */
void memory_forget_context(CUcontext context);

/* Remember or forget a pointer that came from a pool. */
bool memory_put_pooled(CUdeviceptr pointer, uint64_t bytes, uint32_t slice, CUmemoryPool pool);

/* Arrays and pointers are the same but for the key: charge, let `allocate` run, remember. */
struct memory_request {
	struct table *table;
	uint64_t bytes; /* what to charge */
	uint32_t slice;
	enum record_kind kind;
	void *of;
};

/* Charge; false: no room. */
bool memory_begin(const struct memory_request *request);
/* Settle after the driver answered: remember `key`, or give the charge back. */
CUresult memory_end(const struct memory_request *request, CUresult result, uint64_t key);

#endif
