/* How much memory the host has, and how much of it may still be taken for what GPUs use.
 *
 * A tenth of the host's memory always stays free. */
#ifndef ALIQUOT_HOST_H
#define ALIQUOT_HOST_H

#include <stdint.h>

struct aliquot_host {
	uint64_t total_bytes;
	uint64_t available_bytes; /* as the kernel estimates: MemAvailable; 0: it does not say */
};

struct aliquot_host aliquot_host_read(void);

/* What must stay free. */
static inline uint64_t aliquot_host_spare(const struct aliquot_host *host)
{
	return host->total_bytes / 10;
}

/* What may be taken now. */
static inline uint64_t aliquot_host_room(const struct aliquot_host *host)
{
	uint64_t spare = aliquot_host_spare(host);
	return host->available_bytes > spare ? host->available_bytes - spare : 0;
}

#endif
