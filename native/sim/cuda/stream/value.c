/* Values in memory that streams wait for and write.
 *
 * A stream that waits uses no GPU time. The worker polls the value: often at first, since another thread
 * may be about to write it, and less often the longer the wait lasts.
 */
#include "cuda/stream/stream.h"

#include <sys/mman.h>

/* The pause between two looks at a value: a 32nd of the wait so far, but at least PAUSE_MIN_NS, and at
 * most PAUSE_SOON_NS in the first SOON_NS of the wait and PAUSE_LATER_NS until LATER_NS; from then on
 * always PAUSE_LONG_NS. */
#define PAUSE_MIN_NS 20000ull
#define PAUSE_SOON_NS 100000ull
#define SOON_NS 100000000ull
#define PAUSE_LATER_NS 250000ull
#define LATER_NS 1000000000ull
#define PAUSE_LONG_NS 2000000ull

bool value_reached(const struct sim_op *op)
{
	uint64_t now = op->value.wide
	                   ? __atomic_load_n((uint64_t *)op->value.address, __ATOMIC_ACQUIRE)
	                   : __atomic_load_n((uint32_t *)op->value.address, __ATOMIC_ACQUIRE);
	uint64_t value = op->value.value;
	switch (op->value.flags & 3) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return now == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return now & value;
	case CU_STREAM_WAIT_VALUE_NOR:
		return op->value.wide ? ~(now | value) : (uint32_t)~(now | value);
	default:
		return op->value.wide ? (int64_t)(now - value) >= 0
		                      : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
	}
}

void value_write(const struct sim_op *op)
{
	if (op->value.wide)
		__atomic_store_n((uint64_t *)op->value.address, op->value.value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)op->value.address, (uint32_t)op->value.value,
		                 __ATOMIC_RELEASE);
}

uint64_t value_pause(uint64_t waited)
{
	if (waited > LATER_NS)
		return PAUSE_LONG_NS;
	uint64_t pause = waited / 32, most = waited > SOON_NS ? PAUSE_LATER_NS : PAUSE_SOON_NS;
	return pause < PAUSE_MIN_NS ? PAUSE_MIN_NS : pause > most ? most : pause;
}

bool value_writable(uint64_t address, uint64_t size)
{
	if (!range_covers(address, size, PROT_WRITE))
		return false;
	const struct sim_range *range = range_find(address);
	return range->memory != SIM_REGISTERED || !(range->flags & CU_MEMHOSTREGISTER_READ_ONLY);
}
