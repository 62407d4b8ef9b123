#include "observer.h"

#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS (300 * MILLISECOND_NS)
#define ROUND_NS (1 * MILLISECOND_NS)
#define AT_ONCE 8 /* rounds, before they come at that pace */

static void sleep_until(uint64_t when)
{
	struct timespec at = {.tv_sec = (time_t)(when / SECOND_NS),
	                      .tv_nsec = (long)(when % SECOND_NS)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/* What the thread shall ask. */
struct task {
	bool scans;
	uint64_t gpus;
	char uuids[NVML_MAX_GPUS][ALIQUOT_UUID_TEXT_SIZE];
};

/* Waits until something is wanted; false: the thread shall end. */
static bool take_task(struct observer *observer, struct task *task)
{
	pthread_mutex_lock(&observer->lock);
	while (!observer->wanted && !observer->scans && !observer->ends)
		pthread_cond_wait(&observer->changed, &observer->lock);
	bool ends = observer->ends;
	task->scans = observer->scans;
	task->gpus = observer->wanted;
	memcpy(task->uuids, observer->uuids, sizeof(task->uuids));
	observer->wanted = 0;
	observer->scans = false;
	pthread_mutex_unlock(&observer->lock);
	return !ends;
}

static void scan(struct observer *observer)
{
	atomic_store(&observer->asking_since, loop_now());
	struct nvml_scan *found = nvml_scan(observer->nvml);
	atomic_store(&observer->asking_since, 0);
	free(atomic_exchange(&observer->scan, found));
	eventfd_write(observer->news.fd, 1);
}

static void *observe(void *argument)
{
	struct observer *observer = argument;
	struct task task;
	uint64_t paced = 0; /* when the next round would come if all came at that pace */
	while (take_task(observer, &task)) {
		uint64_t begun = loop_now();
		paced = (paced > begun ? paced : begun) + ROUND_NS;
		if (task.scans)
			scan(observer);
		for (unsigned gpu = 0; gpu < NVML_MAX_GPUS; gpu++) {
			if (!(task.gpus >> gpu & 1) || !*task.uuids[gpu])
				continue;
			atomic_store(&observer->asking_since, loop_now());
			struct gpu_snapshot *snapshot = nvml_snapshot(observer->nvml, gpu, task.uuids[gpu]);
			atomic_store(&observer->asking_since, 0);
			if (!snapshot)
				continue;
			free(atomic_exchange(&observer->arrived[gpu], snapshot));
			eventfd_write(observer->news.fd, 1);
		}
		/* What is wanted meanwhile shares the next round. */
		sleep_until(paced - AT_ONCE * ROUND_NS);
	}
	return NULL;
}

uint64_t observer_silent_ns(const struct observer *observer)
{
	uint64_t since = atomic_load(&observer->asking_since), now = loop_now();
	return since && now > since + PATIENCE_NS ? now - since : 0;
}

const struct gpu_snapshot *observer_latest(const struct observer *observer, unsigned gpu)
{
	return observer->latest[gpu];
}

uint64_t observer_all(const struct observer *observer)
{
	uint64_t all = 0;
	for (unsigned gpu = 0; gpu < observer->nvml->gpu_count; gpu++)
		if (!observer->nvml->gpus[gpu].gone)
			all |= UINT64_C(1) << gpu;
	return all;
}

uint64_t observer_unseen(const struct observer *observer)
{
	uint64_t unseen = 0, all = observer_all(observer);
	for (unsigned gpu = 0; gpu < observer->nvml->gpu_count; gpu++)
		if (!observer->latest[gpu])
			unseen |= all & UINT64_C(1) << gpu;
	return unseen;
}

void observer_scan(struct observer *observer)
{
	pthread_mutex_lock(&observer->lock);
	observer->scans = true;
	pthread_cond_signal(&observer->changed);
	pthread_mutex_unlock(&observer->lock);
}

/* Tells the thread the UUIDs of all entries. */
static void tell_uuids(struct observer *observer)
{
	pthread_mutex_lock(&observer->lock);
	for (unsigned gpu = 0; gpu < observer->nvml->gpu_count; gpu++)
		memcpy(observer->uuids[gpu], observer->nvml->gpus[gpu].uuid_text,
		       sizeof(observer->uuids[gpu]));
	pthread_mutex_unlock(&observer->lock);
}

static void take_scan(struct observer *observer)
{
	struct nvml_scan *scan = atomic_exchange(&observer->scan, NULL);
	if (!scan)
		return;
	uint64_t fresh = observer->on_scan(observer, scan);
	for (unsigned gpu = 0; gpu < NVML_MAX_GPUS; gpu++)
		if (fresh >> gpu & 1) {
			free(observer->latest[gpu]);
			observer->latest[gpu] = NULL;
		}
	tell_uuids(observer);
	free(scan);
}

void observer_want(struct observer *observer, uint64_t gpus)
{
	pthread_mutex_lock(&observer->lock);
	observer->wanted |= gpus;
	pthread_cond_signal(&observer->changed);
	pthread_mutex_unlock(&observer->lock);
}

static void link_to(struct observer_wait *head, struct observer_wait *wait)
{
	wait->next = head;
	wait->previous = head->previous;
	wait->previous->next = wait->next->previous = wait;
}

static void unlink_wait(struct observer_wait *wait)
{
	wait->next->previous = wait->previous;
	wait->previous->next = wait->next;
	wait->next = wait->previous = NULL;
}

void observer_wait(struct observer *observer, struct observer_wait *wait, uint64_t gpus,
                   uint64_t patience_ns, void (*done)(struct observer_wait *wait, bool answered))
{
	observer_cancel(wait);
	wait->gpus = gpus;
	wait->since = loop_now();
	uint64_t usual_ns = observer_silent_ns(observer) ? 0 : PATIENCE_NS;
	wait->deadline = wait->since + (patience_ns > usual_ns ? patience_ns : usual_ns);
	wait->done = done;
	link_to(&observer->waits, wait);
	if (!observer->timeout.due || observer->timeout.due > wait->deadline)
		loop_timer_set(observer->loop, &observer->timeout, wait->deadline);
	observer_want(observer, gpus);
}

void observer_cancel(struct observer_wait *wait)
{
	if (wait->next)
		unlink_wait(wait);
	wait->gpus = 0;
}

/* Calls those that need not wait any more. A callback may cancel any wait and begin new ones. */
static void call_done(struct observer *observer, bool (*is_done)(const struct observer_wait *wait),
                      bool answered)
{
	struct observer_wait ready = {.next = &ready, .previous = &ready};
	for (struct observer_wait *wait = observer->waits.next, *next; wait != &observer->waits;
	     wait = next) {
		next = wait->next;
		if (!is_done(wait))
			continue;
		unlink_wait(wait);
		link_to(&ready, wait);
	}
	while (ready.next != &ready) {
		struct observer_wait *wait = ready.next;
		observer_cancel(wait);
		wait->done(wait, answered);
	}
}

static bool has_all(const struct observer_wait *wait)
{
	return !wait->gpus;
}

static bool is_late(const struct observer_wait *wait)
{
	return loop_now() >= wait->deadline;
}

static void on_timeout(struct timer *timer)
{
	struct observer *observer = CONTAINER(timer, struct observer, timeout);
	call_done(observer, is_late, false);
	uint64_t earliest = UINT64_MAX;
	for (struct observer_wait *wait = observer->waits.next; wait != &observer->waits;
	     wait = wait->next)
		if (wait->deadline < earliest)
			earliest = wait->deadline;
	if (earliest != UINT64_MAX)
		loop_timer_set(observer->loop, timer, earliest);
}

static void on_news(struct watch *watch, uint32_t events)
{
	(void)events;
	struct observer *observer = CONTAINER(watch, struct observer, news);
	eventfd_t ignored;
	uint64_t fresh = 0;
	eventfd_read(watch->fd, &ignored);
	take_scan(observer);
	for (unsigned gpu = 0; gpu < observer->nvml->gpu_count; gpu++) {
		struct gpu_snapshot *snapshot = atomic_exchange(&observer->arrived[gpu], NULL);
		if (!snapshot)
			continue;
		if (strcmp(snapshot->uuid,
		           observer->nvml->gpus[gpu].uuid_text)) { /* of an earlier instance */
			free(snapshot);
			continue;
		}
		free(observer->latest[gpu]);
		observer->latest[gpu] = snapshot;
		fresh |= UINT64_C(1) << gpu;
		for (struct observer_wait *wait = observer->waits.next; wait != &observer->waits;
		     wait = wait->next)
			if (wait->since <= snapshot->asked_at)
				wait->gpus &= ~(UINT64_C(1) << gpu);
	}
	call_done(observer, has_all, true);
	for (unsigned gpu = 0; gpu < NVML_MAX_GPUS; gpu++)
		if (fresh >> gpu & 1)
			observer->on_snapshot(observer, gpu);
}

int observer_start(struct observer *observer, struct loop *loop, struct nvml *nvml,
                   void (*on_snapshot)(struct observer *observer, unsigned gpu),
                   uint64_t (*on_scan)(struct observer *observer, const struct nvml_scan *scan))
{
	memset(observer, 0, sizeof(*observer));
	observer->nvml = nvml;
	observer->loop = loop;
	observer->on_snapshot = on_snapshot;
	observer->on_scan = on_scan;
	observer->waits.next = observer->waits.previous = &observer->waits;
	observer->timeout.fire = on_timeout;
	observer->news = (struct watch){.fd = -1, .ready = on_news};
	pthread_mutex_init(&observer->lock, NULL);
	pthread_cond_init(&observer->changed, NULL);
	tell_uuids(observer);
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int error = loop_watch(loop, &observer->news, fd, EPOLLIN);
	if (error) {
		close(fd);
		return error;
	}
	error = pthread_create(&observer->thread, NULL, observe, observer);
	observer->started = !error;
	return -error;
}

bool observer_stop(struct observer *observer)
{
	if (!observer->started)
		return true;
	pthread_mutex_lock(&observer->lock);
	observer->ends = true;
	pthread_cond_signal(&observer->changed);
	pthread_mutex_unlock(&observer->lock);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += (long)PATIENCE_NS;
	until.tv_sec += until.tv_nsec / (long)SECOND_NS;
	until.tv_nsec %= (long)SECOND_NS;
	if (pthread_timedjoin_np(observer->thread, NULL, &until)) {
		log_event("NVML does not answer: ending without it");
		return false;
	}
	loop_timer_stop(&observer->timeout);
	loop_unwatch(observer->loop, &observer->news);
	free(atomic_load(&observer->scan));
	for (unsigned gpu = 0; gpu < NVML_MAX_GPUS; gpu++) {
		free(observer->latest[gpu]);
		free(atomic_load(&observer->arrived[gpu]));
	}
	return true;
}
