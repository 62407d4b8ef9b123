/* Mapped files that tenants can truncate.
 *
 * A tenant has the descriptors of the ledger and of its work page and may truncate the files; touching
 * the missing part raises SIGBUS. That must not kill the arbiter: the handler maps zeroes in place of
 * the file and marks the mapping as truncated. The next reader finds a page that fails its check.
 *
 * Any thread may read and write a mapping. It is not moved in memory while it is open.
 */
#ifndef ARBITER_MAPPING_H
#define ARBITER_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct mapping {
	void *at; /* NULL: not mapped */
	size_t size;
	atomic_bool truncated;
	struct mapping *next;
};

/* Installs the handler: once, before any mapping_open. 0, or -errno. */
int mapping_catch_sigbus(void);

/* Maps the first `least` bytes of `fd`, shared and writable. 0; -EFBIG: the file is shorter; or
 * another -errno. */
int mapping_open(struct mapping *mapping, int fd, size_t least);
void mapping_close(struct mapping *mapping);

#endif
