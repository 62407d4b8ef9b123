/* The event loop: descriptors and timers.
 *
 * One thread, one epoll, one timerfd set to the earliest timer. A watch or timer lies in the object
 * that uses it. Such objects are freed with loop_free_later, because events that the kernel has
 * already delivered may still point to them.
 *
 * Guarantee: after loop_unwatch no callback of that watch runs, not even for events of the same
 * round.
 */
#ifndef ARBITER_LOOP_H
#define ARBITER_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTAINER(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

#define SECOND_NS UINT64_C(1000000000)
#define MILLISECOND_NS UINT64_C(1000000)

struct watch {
	int fd; /* -1: not watched */
	void (*ready)(struct watch *watch, uint32_t events);
};

struct timer {
	uint64_t due; /* 0: off */
	void (*fire)(struct timer *timer);
	struct timer *next, *previous;
};

struct loop {
	int epoll;
	struct watch clock;
	struct timer timers; /* head of the ring of armed timers */
	uint64_t armed;      /* what the timerfd is set to; 0: off */
	void **dead;         /* memory to free after this round */
	size_t dead_count, dead_size;
	bool stopped;
};

uint64_t loop_now(void);

/* 0, or -errno. */
int loop_open(struct loop *loop);
void loop_close(struct loop *loop);

/* Runs until loop_stop; 0, or -errno if epoll fails. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

/* 0; or -errno: then the caller still owns the descriptor. */
int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events);
void loop_rewatch(struct loop *loop, struct watch *watch, uint32_t events);
/* Stops watching and closes the descriptor. */
void loop_unwatch(struct loop *loop, struct watch *watch);

void loop_timer_set(struct loop *loop, struct timer *timer, uint64_t due);
void loop_timer_stop(struct timer *timer);

void loop_free_later(struct loop *loop, void *memory);

#endif
