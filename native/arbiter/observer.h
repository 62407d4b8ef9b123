/* The observer: a thread that asks NVML, so that the main thread never waits for it.
 *
 * The main thread says of which GPUs it wants a new snapshot (nvml.h) and goes on; the thread asks
 * NVML and hands the snapshots over. A caller that needs to know how things are *after* an event waits for
 * snapshots that were asked for after it. One answer serves all waiting callers, of whatever grant, and
 * there are at most a thousand rounds a second: so the number of NVML's calls does not depend on how
 * often tenants ask, and no grant comes before another.
 *
 * If NVML does not answer within 300 ms it is silent. Waiting callers are told so, new ones at once,
 * until the call returns. A caller that would rather wait than guess names a longer patience.
 *
 * Everything here is for the main thread, which also runs the callbacks.
 */
#ifndef ARBITER_OBSERVER_H
#define ARBITER_OBSERVER_H

#include "loop.h"
#include "nvml.h"

#include <pthread.h>
#include <stdatomic.h>

/* Lies in the object that waits. */
struct observer_wait {
	uint64_t gpus;     /* bit per GPU: no new snapshot yet; 0: it does not wait */
	uint64_t since;    /* snapshots asked for earlier do not count */
	uint64_t deadline; /* after that it no longer waits */
	/* `answered`: there are new snapshots of all its GPUs. */
	void (*done)(struct observer_wait *wait, bool answered);
	struct observer_wait *next, *previous;
};

struct observer {
	struct nvml *nvml;
	struct loop *loop;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t wanted; /* bit per GPU; with the lock */
	bool scans;      /* it shall ask which GPUs there are; with the lock */
	char uuids[NVML_MAX_GPUS][ALIQUOT_UUID_TEXT_SIZE]; /* of the GPUs; with the lock */
	bool ends;                                         /* with the lock */
	bool started;
	_Atomic uint64_t asking_since; /* when the thread called NVML; 0: it does not ask */
	struct gpu_snapshot *_Atomic arrived[NVML_MAX_GPUS];
	struct nvml_scan *_Atomic scan; /* one that has arrived */
	struct gpu_snapshot *latest[NVML_MAX_GPUS];
	struct watch news; /* an eventfd: snapshots have arrived */
	struct observer_wait waits;
	struct timer timeout;
	/* There is a new scan; the callback merges it. Returns the entries that are new. */
	uint64_t (*on_scan)(struct observer *observer, const struct nvml_scan *scan);
	/* There is a new snapshot of that GPU; the callers that waited for it have been called. */
	void (*on_snapshot)(struct observer *observer, unsigned gpu);
};

/* 0, or -errno. */
int observer_start(struct observer *observer, struct loop *loop, struct nvml *nvml,
                   void (*on_snapshot)(struct observer *observer, unsigned gpu),
                   uint64_t (*on_scan)(struct observer *observer, const struct nvml_scan *scan));
/* False: NVML is silent, so the thread is still inside it and NVML must not be closed. */
bool observer_stop(struct observer *observer);

/* Asks which GPUs there are, before the next snapshots. */
void observer_scan(struct observer *observer);

/* The GPUs of which there is no snapshot yet. */
uint64_t observer_unseen(const struct observer *observer);

/* Asks for new snapshots of those GPUs. */
void observer_want(struct observer *observer, uint64_t gpus);
/* Asks, and calls `done` when they are there, or when NVML is silent and `patience_ns` is over; 0: the
 * observer's own. `gpus` is not 0. */
void observer_wait(struct observer *observer, struct observer_wait *wait, uint64_t gpus,
                   uint64_t patience_ns, void (*done)(struct observer_wait *wait, bool answered));
/* Its callback is not called any more. Does nothing if it does not wait. */
void observer_cancel(struct observer_wait *wait);

/* The newest snapshot of a GPU; NULL: there is none yet. Valid until the callback returns. */
const struct gpu_snapshot *observer_latest(const struct observer *observer, unsigned gpu);

/* The bits of all GPUs that are not gone. */
uint64_t observer_all(const struct observer *observer);

/* For how long NVML has not answered; 0: it is not silent. */
uint64_t observer_silent_ns(const struct observer *observer);

#endif
