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

/* All that dies with a context, taken out of the books while the driver ends it. */
struct memory_of_context {
	struct table pointers, arrays, imports;
};
void memory_take_context(CUcontext context, struct memory_of_context *out);
/* It is dead: give all of it back. Or it is not: put all of it in the books again. */
void memory_give_back_context(struct memory_of_context *memory);
void memory_keep_context(struct memory_of_context *memory);

/* Remember or forget a pointer that came from a pool. */
void memory_put_pooled(CUdeviceptr pointer, uint64_t bytes, uint32_t slice, CUmemoryPool pool);

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

/* Settle a record that was taken out before the driver was asked to free what it stands for: give it
 * back, or remember it again where the driver refused. NULL: there was none. */
CUresult memory_freed(struct table *table, const struct record *record, CUresult result);

#endif
