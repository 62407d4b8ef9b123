/* Mapped files that others can shorten.
 *
 * A tenant holds the ledger's descriptor and may truncate it; touching what is gone raises SIGBUS.
 * A process of our own may not die of that: the handler puts zeroes where the file was and marks
 * the pages as lost. Whoever reads them next sees a page that fails its check.
 */
#ifndef ARBITER_PAGES_H
#define ARBITER_PAGES_H

#include <signal.h>
#include <stddef.h>

struct pages {
	void *at; /* NULL: not mapped */
	size_t size;
	volatile sig_atomic_t lost;
	struct pages *next;
};

/* Once, before any pages_map. 0, or -errno. */
int pages_guard(void);

/* Maps all of `fd`, shared and writable, if it has at least `least` bytes. 0, -EFBIG: it is
 * shorter, or another -errno. */
int pages_map(struct pages *pages, int fd, size_t least);
void pages_unmap(struct pages *pages);

#endif
