/* Mapped files that tenants can truncate.
 *
 * A tenant has the ledger's descriptor and may truncate the file; touching the missing part raises
 * SIGBUS. That must not kill the arbiter: the handler maps zeroes in place of the file and marks the
 * mapping as truncated. The next reader finds a page that fails its check.
 */
#ifndef ARBITER_MAPPING_H
#define ARBITER_MAPPING_H

#include <signal.h>
#include <stddef.h>

struct mapping {
	void *at; /* NULL: not mapped */
	size_t size;
	volatile sig_atomic_t truncated;
	struct mapping *next;
};

/* Installs the handler: once, before any mapping_open. 0, or -errno. */
int mapping_catch_sigbus(void);

/* Maps the first `least` bytes of `fd`, shared and writable. 0; -EFBIG: the file is shorter; or
 * another -errno. */
int mapping_open(struct mapping *mapping, int fd, size_t least);
void mapping_close(struct mapping *mapping);

#endif
