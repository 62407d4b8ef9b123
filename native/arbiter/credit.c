#include "credit.h"

#include "mps.h"
#include "nvml.h"
#include "processes.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NICE (-10)
/* However soon the next look is due, other threads can take the lock in between. */
#define LEAST_SLEEP_NS UINT64_C(10000)

struct credit_slice {
	struct credit_grant *grant;
	uint32_t index;
	bool takes_part; /* the machine has its GPU */
	struct contender contender;
	struct recent_usage usage;
	uint64_t idle_from; /* before that it was not idle, or nobody could see whether it was */
	bool was_exempt;
	uint64_t fallbacks, exemptions;
	int32_t late_pid;
};

struct credit_grant {
	struct credit_grant *next;
	struct credit_process *processes;
	uint32_t owner_uid;
	char together[ALIQUOT_NAME_SIZE];
	uint32_t slice_count;
	struct credit_slice slices[];
};

struct credit_process {
	struct credit_process *next;
	int32_t pid;
	struct worker workers[]; /* by slice */
};

static struct credit *credit_of(const struct grant *grant)
{
	return &grant->arbiter->credit;
}

static struct turns *turns_of(const struct grant *grant, uint32_t slice)
{
	return &credit_of(grant)->gpus[grant_gpu_number(grant, slice)];
}

static struct recent_observation observe(const struct credit_slice *slice)
{
	const struct contender *contender = &slice->contender;
	struct recent_observation seen = {
		.alone = contender->active && !contender->turns->contended,
		.used_ns = contender->figures.used_ns,
	};
	for (const struct worker *worker = contender->workers; worker; worker = worker->next)
		seen.launches += worker->view.launches;
	return seen;
}

static int32_t late_process(const struct credit_slice *slice)
{
	const struct credit_process *process = slice->grant->processes;
	while (process && !process->workers[slice->index].pending)
		process = process->next;
	return process ? process->pid : 0;
}

/* What its processes found; a problem of one of them comes first. */
static void read_gates(const struct contender *contender, struct credit_figures *out)
{
	for (const struct worker *worker = contender->workers; worker; worker = worker->next)
		if (worker->view.gates > out->gates) {
			out->gates = worker->view.gates;
			out->why = out->gates == ALIQUOT_GATES_FAIL ? worker->view.why : 0;
		}
}

/* For how long none of its programs has had work that the turns could see. */
static uint64_t idle_ns(const struct credit_slice *slice, uint64_t now)
{
	uint64_t from = slice->contender.active_at;
	if (from < slice->idle_from)
		from = slice->idle_from;
	return now > from ? now - from : 0;
}

/* Records what a look at the turns has changed, for credit_read. */
static void record_changes(struct credit_slice *slice, uint64_t now)
{
	const struct contender *contender = &slice->contender;
	struct recent_observation seen = observe(slice);
	recent_usage_update(&slice->usage, &seen, now);
	if (slice->fallbacks != contender->figures.fallbacks)
		slice->late_pid = late_process(slice);
	slice->fallbacks = contender->figures.fallbacks;
	bool exempt = contender->state == CONTENDER_EXEMPT;
	slice->exemptions += exempt && !slice->was_exempt;
	slice->was_exempt = exempt;
}

/* Looks at all GPUs; returns when to look again. */
static uint64_t look_at_all(struct credit *credit)
{
	uint64_t now = loop_now(), next = TURNS_NEVER;
	for (unsigned i = 0; i < credit->gpu_count; i++) {
		struct turns *turns = &credit->gpus[i];
		uint64_t then = turns_look(turns, now);
		if (then < next)
			next = then;
		for (struct contender *contender = turns->contenders; contender;
		     contender = contender->next)
			record_changes(CONTAINER(contender, struct credit_slice, contender), now);
	}
	return next < now + LEAST_SLEEP_NS ? now + LEAST_SLEEP_NS : next;
}

/* Returns at `until`, or when the thread is woken. */
static void sleep_until(struct credit *credit, uint64_t until)
{
	struct timespec at = {.tv_sec = (time_t)(until / SECOND_NS),
	                      .tv_nsec = (long)(until % SECOND_NS)};
	int error = 0;
	while (!credit->woken && !error) {
		if (until == TURNS_NEVER)
			pthread_cond_wait(&credit->wake, &credit->lock);
		else
			error = pthread_cond_timedwait(&credit->wake, &credit->lock, &at);
	}
	credit->woken = false;
}

/* A late look wastes GPU time: exact timers, and as high a priority as the system allows. */
static void be_punctual(void)
{
	struct sched_param least = {.sched_priority = sched_get_priority_min(SCHED_RR)};
	prctl(PR_SET_NAME, "aliquot-credit");
	prctl(PR_SET_TIMERSLACK, 1);
	if (sched_setscheduler(0, SCHED_RR, &least))
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
}

static void *run_thread(void *argument)
{
	struct credit *credit = argument;
	be_punctual();
	pthread_mutex_lock(&credit->lock);
	while (!credit->stopping) {
		uint64_t next = look_at_all(credit);
		atomic_fetch_add_explicit(credit->looks, 1, memory_order_relaxed);
		sleep_until(credit, next);
	}
	pthread_mutex_unlock(&credit->lock);
	return NULL;
}

static int start_thread(struct credit *credit)
{
	sigset_t all, before;
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* a tenant may have truncated a page: mapping.h */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = -pthread_create(&credit->thread, NULL, run_thread, credit);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

/* A holder of the lock has the priority of the thread that waits for it: no busy machine makes that
 * thread wait. */
static void init_lock(pthread_mutex_t *lock)
{
	pthread_mutexattr_t inheriting;
	pthread_mutexattr_init(&inheriting);
	pthread_mutexattr_setprotocol(&inheriting, PTHREAD_PRIO_INHERIT);
	if (pthread_mutex_init(lock, &inheriting))
		pthread_mutex_init(lock, NULL);
	pthread_mutexattr_destroy(&inheriting);
}

int credit_start(struct credit *credit, unsigned gpu_count, _Atomic uint64_t *looks)
{
	pthread_condattr_t monotonic;
	credit->gpus = calloc(NVML_MAX_GPUS, sizeof(*credit->gpus));
	if (!credit->gpus)
		return -ENOMEM;
	credit->gpu_count = gpu_count;
	credit->looks = looks;
	for (unsigned i = 0; i < NVML_MAX_GPUS; i++)
		turns_init(&credit->gpus[i], loop_now());
	init_lock(&credit->lock);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&credit->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	int error = start_thread(credit);
	credit->running = !error;
	return error;
}

static void wake_locked(struct credit *credit)
{
	credit->woken = true;
	pthread_cond_signal(&credit->wake);
}

void credit_wake(struct credit *credit)
{
	pthread_mutex_lock(&credit->lock);
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
}

void credit_look(struct credit *credit)
{
	pthread_mutex_lock(&credit->lock);
	look_at_all(credit);
	wake_locked(credit); /* the next look may be due sooner than the thread knows */
	pthread_mutex_unlock(&credit->lock);
}

void credit_set_gpus(struct credit *credit, unsigned gpu_count)
{
	pthread_mutex_lock(&credit->lock);
	credit->gpu_count = gpu_count;
	pthread_mutex_unlock(&credit->lock);
}

void credit_stop(struct credit *credit)
{
	if (!credit->running)
		return;
	pthread_mutex_lock(&credit->lock);
	credit->stopping = true;
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
	pthread_join(credit->thread, NULL);
	credit->running = false;
}

void credit_free(struct credit *credit)
{
	free(credit->gpus);
	credit->gpus = NULL;
	credit->gpu_count = 0;
}

static struct turns_settings settings_of(const struct grant *grant, uint32_t slice)
{
	const struct aliquot_slice_limits *limits = &grant->limits->slices[slice];
	return (struct turns_settings){
		.percent = atomic_load(&limits->compute_percent),
		.policy = (enum aliquot_policy)atomic_load(&limits->policy),
		.priority = (enum aliquot_priority)atomic_load(&limits->priority),
		.grant_state = grant_state(grant),
		.mps = grant->record->mps && mps_overlaps(),
	};
}

/* A contender of the same user that is a client of the same MPS server; or NULL. */
static struct contender *find_client(const struct credit *credit, uint32_t owner_uid,
                                     const struct turns *turns)
{
	for (struct credit_grant *other = credit->grants; other; other = other->next)
		if (other->owner_uid == owner_uid && other->slices[0].takes_part &&
		    other->slices[0].contender.settings.mps && other->slices[0].contender.turns == turns)
			return &other->slices[0].contender;
	return NULL;
}

/* A contender of another grant with the same owner that is to run together with this one; or NULL. */
static struct contender *find_group(const struct credit *credit, const struct credit_grant *added)
{
	for (struct credit_grant *other = credit->grants; *added->together && other;
	     other = other->next) {
		if (other->owner_uid != added->owner_uid || strcmp(other->together, added->together))
			continue;
		for (uint32_t i = 0; i < other->slice_count; i++)
			if (other->slices[i].takes_part)
				return &other->slices[i].contender;
	}
	return NULL;
}

int credit_add_grant(struct grant *grant)
{
	struct credit *credit = credit_of(grant);
	struct credit_grant *added = calloc(1, sizeof(*added) +
	                                           grant->slice_count * sizeof(*added->slices));
	if (!added)
		return -ENOMEM;
	added->slice_count = grant->slice_count;
	added->owner_uid = grant->owner_uid;
	memcpy(added->together, grant->record->together, sizeof(added->together) - 1);
	pthread_mutex_lock(&credit->lock);
	struct contender *joint = find_group(credit, added);
	if (grant->record->mps && mps_overlaps() && grant->gpus[0])
		joint = find_client(credit, added->owner_uid, turns_of(grant, 0));
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct credit_slice *slice = &added->slices[i];
		struct turns_settings settings = settings_of(grant, i);
		slice->grant = added;
		slice->index = i;
		slice->takes_part = grant->gpus[i] != NULL;
		if (!slice->takes_part)
			continue;
		slice->idle_from = loop_now();
		turns_add(turns_of(grant, i), &slice->contender, &settings, joint, slice->idle_from);
		joint = &slice->contender;
	}
	added->next = credit->grants;
	credit->grants = added;
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
	grant->credit = added;
	return 0;
}

void credit_change_grant(struct grant *grant)
{
	struct credit *credit = credit_of(grant);
	if (!grant->credit)
		return;
	pthread_mutex_lock(&credit->lock);
	uint64_t now = loop_now();
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct credit_slice *slice = &grant->credit->slices[i];
		struct turns_settings settings = settings_of(grant, i);
		if (!slice->takes_part)
			continue;
		if (slice->contender.settings.grant_state != settings.grant_state)
			slice->idle_from = now; /* what it does while it is not active is not observed */
		turns_change(&slice->contender, &settings, now);
		record_changes(slice, now); /* the last time, if it no longer takes turns */
	}
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
}

void credit_remove_grant(struct grant *grant)
{
	struct credit *credit = credit_of(grant);
	struct credit_grant *removed = grant->credit;
	if (!removed)
		return;
	pthread_mutex_lock(&credit->lock);
	for (uint32_t i = 0; i < removed->slice_count; i++)
		if (removed->slices[i].takes_part)
			turns_remove(&removed->slices[i].contender);
	struct credit_grant **link = &credit->grants;
	while (*link != removed)
		link = &(*link)->next;
	*link = removed->next;
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
	free(removed);
	grant->credit = NULL;
}

int credit_add_process(struct process *process)
{
	struct grant *grant = process->grant;
	struct credit *credit = credit_of(grant);
	struct credit_process *added = calloc(1, sizeof(*added) +
	                                             grant->slice_count * sizeof(*added->workers));
	if (!added)
		return -ENOMEM;
	const struct process_pages *pages = &process->pages;
	added->pid = process->pid;
	pthread_mutex_lock(&credit->lock);
	uint64_t now = loop_now();
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct credit_slice *slice = &grant->credit->slices[i];
		if (!slice->takes_part)
			continue;
		slice->idle_from = now;
		turns_enter(&slice->contender, &added->workers[i], &pages->work[i],
		            &pages->credit->slices[i], now);
	}
	added->next = grant->credit->processes;
	grant->credit->processes = added;
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
	process->credit = added;
	return 0;
}

void credit_remove_process(struct process *process)
{
	struct grant *grant = process->grant;
	struct credit *credit = credit_of(grant);
	struct credit_process *removed = process->credit;
	if (!removed)
		return;
	pthread_mutex_lock(&credit->lock);
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct credit_slice *slice = &grant->credit->slices[i];
		if (!slice->takes_part)
			continue;
		slice->idle_from = loop_now(); /* its work may not have been seen */
		turns_leave(&slice->contender, &removed->workers[i]);
	}
	struct credit_process **link = &grant->credit->processes;
	while (*link != removed)
		link = &(*link)->next;
	*link = removed->next;
	wake_locked(credit);
	pthread_mutex_unlock(&credit->lock);
	free(removed);
	process->credit = NULL;
}

void credit_set_stopped(struct process *process, bool stopped)
{
	struct credit *credit = credit_of(process->grant);
	if (!process->credit)
		return;
	pthread_mutex_lock(&credit->lock);
	for (uint32_t i = 0; i < process->grant->slice_count; i++)
		turns_set_stopped(&process->credit->workers[i], stopped);
	pthread_mutex_unlock(&credit->lock);
}

void credit_read(struct grant *grant, uint32_t slice, struct credit_figures *out)
{
	struct credit *credit = credit_of(grant);
	struct credit_slice *read = grant->credit ? &grant->credit->slices[slice] : NULL;
	*out = (struct credit_figures){0};
	if (!read || !read->takes_part)
		return;
	pthread_mutex_lock(&credit->lock);
	struct recent_observation seen = observe(read);
	*out = (struct credit_figures){
		.state = read->contender.state,
		.active = read->contender.active,
		.contended = read->contender.turns->contended,
		.weight = read->contender.weight,
		.turns = read->contender.figures,
		.usage = recent_usage_read(&read->usage, &seen, loop_now()),
		.idle_ns = idle_ns(read, loop_now()),
		.backlog = turns_backlog(&read->contender),
		.exemptions = read->exemptions,
		.late_pid = read->late_pid,
	};
	read_gates(&read->contender, out);
	pthread_mutex_unlock(&credit->lock);
}

void credit_note_unseen(struct grant *grant, uint32_t slice)
{
	struct credit *credit = credit_of(grant);
	if (!grant->credit)
		return;
	pthread_mutex_lock(&credit->lock);
	grant->credit->slices[slice].idle_from = loop_now();
	pthread_mutex_unlock(&credit->lock);
}

bool credit_sees_all(const struct grant *grant, uint32_t slice,
                     const struct credit_figures *figures)
{
	bool unseen = figures->gates == ALIQUOT_GATES_FAIL || figures->gates == ALIQUOT_GATES_INVALID ||
	              grant->unjoined_bytes[slice];
	for (uint32_t slot = 0; slot < grant->process_end; slot++)
		unseen |= grant->processes[slot] && *grant->processes[slot]->ungated;
	return !unseen;
}

enum aliquot_gates credit_gates(const struct process *process, uint32_t slice, uint32_t *why)
{
	struct credit *credit = credit_of(process->grant);
	*why = 0;
	if (!process->credit || !process->grant->credit->slices[slice].takes_part)
		return ALIQUOT_GATES_UNTRIED;
	pthread_mutex_lock(&credit->lock);
	const struct aliquot_work_view *view = &process->credit->workers[slice].view;
	enum aliquot_gates gates = view->gates;
	*why = view->why;
	pthread_mutex_unlock(&credit->lock);
	return gates;
}

bool credit_is_contended(struct credit *credit, unsigned gpu)
{
	pthread_mutex_lock(&credit->lock);
	bool contended = credit->gpus[gpu].contended;
	pthread_mutex_unlock(&credit->lock);
	return contended;
}

uint64_t credit_cpu_ns(const struct credit *credit)
{
	clockid_t clock;
	struct timespec used;
	if (pthread_getcpuclockid(credit->thread, &clock) || clock_gettime(clock, &used))
		return 0;
	return (uint64_t)used.tv_sec * SECOND_NS + (uint64_t)used.tv_nsec;
}
