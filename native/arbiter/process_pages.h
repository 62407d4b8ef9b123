/* The two pages of one process, credit and work (aliquot/credit.h), as the arbiter has them.
 *
 * They are memfds, allocated in full. The arbiter makes and maps them, its parent maps them too
 * (page_store.h), and then the arbiter seals them. From then on nobody can map `credit` writable or
 * write to it, and nobody can shrink either, so reading a page that a tenant can write never raises
 * SIGBUS.
 *
 * A tenant can write anything to `work`: readers must bound their loops over it.
 */
#ifndef ARBITER_PROCESS_PAGES_H
#define ARBITER_PROCESS_PAGES_H

#include "aliquot/credit.h"
#include "failure.h"

#include <stdbool.h>

struct process_pages {
	struct aliquot_credit *credit; /* NULL: not mapped */
	const struct aliquot_work_slice *work;
	uint32_t slices;
};

/* Their descriptors, in the order in which WELCOME carries them. */
struct process_page_fds {
	int credit, work;
};

/* Creates both, filled in and with every gate open, not sealed. 0, or -errno. */
int process_pages_make(uint32_t slices, struct process_page_fds *fds);
void process_pages_close(const struct process_page_fds *fds);

/* Only before the seal. 0, or -errno. */
int process_pages_map(const struct process_page_fds *fds, uint32_t slices,
                      struct process_pages *out);
void process_pages_unmap(struct process_pages *pages);

/* 0, or -errno. */
int process_pages_seal(const struct process_page_fds *fds);

/* Opens every gate; the process neither sends RING nor closes quanta early. */
void process_pages_open_gates(const struct process_pages *pages);

/* Whether this kernel supports all of it. */
bool process_pages_check_kernel(struct failure *failure);

#endif
