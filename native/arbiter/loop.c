#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

uint64_t loop_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

/* Sets the timerfd to the earliest timer, or off. */
static void arm_clock(struct loop *loop)
{
	uint64_t earliest = 0;
	for (struct timer *timer = loop->timers.next; timer != &loop->timers; timer = timer->next)
		if (!earliest || timer->due < earliest)
			earliest = timer->due;
	if (earliest == loop->armed)
		return;
	loop->armed = earliest;
	struct itimerspec at = {
		.it_value = {.tv_sec = (time_t)(earliest / SECOND_NS),
		             .tv_nsec = (long)(earliest % SECOND_NS)},
	};
	timerfd_settime(loop->clock.fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void fire_due(struct watch *watch, uint32_t events)
{
	(void)events;
	struct loop *loop = CONTAINER(watch, struct loop, clock);
	uint64_t expirations, now = loop_now();
	ssize_t ignored = read(watch->fd, &expirations, sizeof(expirations));
	(void)ignored;
	loop->armed = 0;
	/* A callback may set or stop any timer, so start over after each. None sets one in the past. */
	struct timer *timer = loop->timers.next;
	while (timer != &loop->timers) {
		if (timer->due > now) {
			timer = timer->next;
			continue;
		}
		loop_timer_stop(timer);
		timer->fire(timer);
		timer = loop->timers.next;
	}
}

int loop_open(struct loop *loop)
{
	memset(loop, 0, sizeof(*loop));
	loop->timers.next = loop->timers.previous = &loop->timers;
	loop->clock = (struct watch){.fd = -1, .ready = fire_due};
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll < 0)
		return -errno;
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	return loop_watch(loop, &loop->clock, fd, EPOLLIN);
}

static void free_dead(struct loop *loop)
{
	for (size_t i = 0; i < loop->dead_count; i++)
		free(loop->dead[i]);
	loop->dead_count = 0;
}

void loop_close(struct loop *loop)
{
	loop_unwatch(loop, &loop->clock);
	free_dead(loop);
	free(loop->dead);
	if (loop->epoll >= 0)
		close(loop->epoll);
}

int loop_run(struct loop *loop)
{
	struct epoll_event events[64];
	while (!loop->stopped) {
		arm_clock(loop);
		int count = epoll_wait(loop->epoll, events, sizeof(events) / sizeof(*events), -1);
		if (count < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < count; i++) {
			struct watch *watch = events[i].data.ptr;
			if (watch->fd >= 0)
				watch->ready(watch, events[i].events);
		}
		free_dead(loop);
	}
	return 0;
}

void loop_stop(struct loop *loop)
{
	loop->stopped = true;
}

int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event))
		return -errno;
	watch->fd = fd;
	return 0;
}

void loop_rewatch(struct loop *loop, struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	if (watch->fd >= 0)
		epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

void loop_unwatch(struct loop *loop, struct watch *watch)
{
	if (watch->fd < 0)
		return;
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	close(watch->fd);
	watch->fd = -1;
}

void loop_timer_set(struct loop *loop, struct timer *timer, uint64_t due)
{
	loop_timer_stop(timer);
	timer->due = due;
	timer->next = &loop->timers;
	timer->previous = loop->timers.previous;
	timer->previous->next = timer;
	timer->next->previous = timer;
}

void loop_timer_stop(struct timer *timer)
{
	if (!timer->due)
		return;
	timer->due = 0;
	timer->next->previous = timer->previous;
	timer->previous->next = timer->next;
	timer->next = timer->previous = NULL;
}

void loop_free_later(struct loop *loop, void *memory)
{
	if (loop->dead_count == loop->dead_size) {
		size_t size = loop->dead_size ? loop->dead_size * 2 : 16;
		void **dead = realloc(loop->dead, size * sizeof(*dead));
		if (!dead)
			return; /* a leak is better than a use after free */
		loop->dead = dead;
		loop->dead_size = size;
	}
	loop->dead[loop->dead_count++] = memory;
}
