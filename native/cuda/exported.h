/* Memory that left this process as a file descriptor: charged until no copy of it is open.
 *
 * How shared memory is counted. The driver keeps memory until its last handle, mapping and
 * descriptor are gone, in whatever process. NVML shows it once (seen on an H200): for the process
 * that created it, while that process holds it; then, as soon as no descriptor of it is open, for a
 * process that imported it. So an import is never charged in the ledger, and needs no match with its
 * export: the creator is charged while it holds the memory, and afterwards the arbiter finds the
 * memory in NVML's figure for the importer, in the same grant or another.
 *
 * The gap. While nothing but an open descriptor holds the memory, NVML shows it for no process. So
 * its creator stays charged until every copy of the descriptor is closed. To see that, we put a lock
 * of the open file description (F_OFD_SETLK) on each exported descriptor, at a byte of the file
 * whose number is the memory's mark. The kernel keeps the lock until the last copy is closed in any
 * process, and shows it in /proc/locks.
 *
 * Guarantees: memory that a descriptor holds stays charged while its creator lives. A descriptor
 * that cannot be locked counts as open until this process ends. */
#ifndef ALIQUOT_EXPORTED_H
#define ALIQUOT_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

/* No descriptor of the memory was made. */
#define EXPORTED_NOT UINT64_C(0)
/* A descriptor of it cannot be followed. */
#define EXPORTED_FOR_EVER UINT64_MAX

/* The program got a new descriptor of the memory with that mark. Returns its mark from now on. */
uint64_t exported_descriptor(uint64_t mark, int descriptor);

/* This process has released the memory: give its charge back when no descriptor is open. */
void exported_release(uint64_t mark, uint32_t slice, uint64_t bytes);

/* Give back what was released and is no longer open anywhere; true: there was something. */
bool exported_settle(void);
/* The same, not more often than every 10 ms and in at most a fiftieth of the time: for calls that
 * programs make all the time. */
void exported_settle_sometimes(void);

#endif
