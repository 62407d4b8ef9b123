/* The entries, sums and locks in the machine's file. See machine.h. */
#include "machine.h"

#include "mig.h"
#include "schedule.h"
#include "share.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#define BASELINE (3328ull << 10) /* what the driver itself uses of an idle GPU */

uint64_t machine_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t own_token(void)
{
	uint64_t token;
	memcpy(&token, (const void *)getauxval(AT_RANDOM), sizeof(token));
	return token ^ (uint64_t)getpid() * 0x9e3779b97f4a7c15ull;
}

static void add_up(struct sim_map *map)
{
	for (uint32_t g = 0; g < machine_units(map); g++) {
		uint64_t used = 0, busy_ns = map->gpus[g].ended_ns;
		for (uint32_t i = 0; i < map->high; i++) {
			const struct sim_usage *usage = &map->processes[i].usage[g];
			used += machine_on_gpus(&map->processes[i]) ? usage->bytes + usage->managed : 0;
			busy_ns += map->processes[i].used ? usage->busy_ns : 0;
		}
		map->gpus[g].used = used;
		map->gpus[g].busy_ns = busy_ns;
	}
}

static struct flock byte_lock(uint32_t byte, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* The kernel does not report a process's own record locks to it, hence the tokens. */
bool machine_ticket_lives(void *machine, uint32_t ticket)
{
	const struct machine *m = machine;
	uint32_t number = ticket % SIM_SEATS;
	const struct sim_seat *seat = &m->map->seats[number];
	struct flock lock = byte_lock(SIM_MAX_PROCESSES + number, F_WRLCK);
	if (__atomic_load_n(&seat->turn, __ATOMIC_ACQUIRE) != ticket / SIM_SEATS)
		return false;
	if (__atomic_load_n(&seat->token, __ATOMIC_ACQUIRE) == own_token())
		return true;
	return fcntl(m->fd, F_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* Takes a seat for this library; false: all are taken. A seat with our token belongs to another library
 * in this process, which shares our record locks. */
static bool take_seat(struct machine *m)
{
	uint64_t token = own_token();
	for (uint32_t i = 0; i < SIM_SEATS; i++) {
		uint32_t number = ((uint32_t)getpid() + i) % SIM_SEATS;
		struct sim_seat *seat = &m->map->seats[number];
		struct flock lock = byte_lock(SIM_MAX_PROCESSES + number, F_WRLCK);
		uint64_t before = __atomic_load_n(&seat->token, __ATOMIC_ACQUIRE);
		if (before == token || fcntl(m->fd, F_SETLK, &lock) ||
		    !__atomic_compare_exchange_n(&seat->token, &before, token, false, __ATOMIC_ACQ_REL,
		                                 __ATOMIC_RELAXED))
			continue;
		uint32_t turn = seat->turn + 1 < SIM_TURNS ? seat->turn + 1 : 1;
		__atomic_store_n(&seat->turn, turn, __ATOMIC_RELEASE);
		m->ticket = turn * SIM_SEATS + number;
		return true;
	}
	return false;
}

static struct machine *opened;

/* A forked child has no record locks, and no thread that could release the inherited mutex. */
static void forked(void)
{
	opened->ticket = 0;
	pthread_mutex_init(&opened->threads, NULL);
}

bool machine_take_seat(struct machine *m)
{
	if (!opened)
		pthread_atfork(NULL, NULL, forked);
	opened = m;
	pthread_mutex_init(&m->threads, NULL);
	return take_seat(m);
}

void machine_lock(struct machine *m)
{
	pthread_mutex_lock(&m->threads);
	while (!m->ticket && !take_seat(m))
		usleep(1000);
	if (lock_acquire(&m->map->lock, m->ticket, machine_ticket_lives, m)) {
		add_up(m->map);
		schedule_repair(m->map);
	}
}

void machine_unlock(struct machine *m)
{
	lock_release(&m->map->lock);
	pthread_mutex_unlock(&m->threads);
}

/* The process's pid in this pid namespace; 0: it is dead; -1: it lives, but not in this namespace. */
static pid_t pid_here(const struct machine *m, uint32_t slot)
{
	const struct sim_process *p = &m->map->processes[slot];
	if (!p->used)
		return 0;
	if (p->token == own_token())
		return p->pid;
	struct flock lock = byte_lock(slot, F_WRLCK);
	if (fcntl(m->fd, F_GETLK, &lock) || lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? lock.l_pid : -1;
}

pid_t machine_pid(struct machine *m, uint32_t slot)
{
	pid_t pid = pid_here(m, slot);
	return pid < 0 ? m->map->processes[slot].pid : pid;
}

uint32_t machine_find(struct machine *m, pid_t pid)
{
	for (uint32_t i = 0; i < m->map->high; i++)
		if (pid_here(m, i) == pid)
			return i;
	return SIM_NONE;
}

/* Clears a dead process's entry; the file keeps how much GPU time it had. */
static void clear_entry(struct sim_map *map, struct sim_process *p)
{
	struct sim_ended *ended = &map->ended[map->ended_count % SIM_ENDED];
	bool on_gpus = machine_on_gpus(p);
	ended->pid = p->pid;
	p->used = 0;
	for (uint32_t g = 0; g < machine_units(map); g++) {
		const struct sim_usage *usage = &p->usage[g];
		ended->busy_ns[g] = usage->busy_ns;
		map->gpus[g].ended_ns += usage->busy_ns;
		if (on_gpus)
			map->gpus[g].used -= usage->bytes + usage->managed;
	}
	map->ended_count++;
}

void machine_reap(struct machine *m)
{
	for (uint32_t i = 0; i < m->map->high; i++) {
		struct sim_process *p = &m->map->processes[i];
		if (!p->used || machine_pid(m, i))
			continue;
		for (uint32_t g = 0; g < machine_units(m->map); g++)
			schedule_leave(m->map, g, i, machine_now());
		share_forget(m->map, i);
		clear_entry(m->map, p);
	}
}

/* The slot of a free entry, with its record lock taken; SIM_NONE: there is none. */
static uint32_t free_slot(struct machine *m)
{
	for (uint32_t i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct flock lock = byte_lock(i, F_WRLCK);
		if (!m->map->processes[i].used && !fcntl(m->fd, F_SETLK, &lock))
			return i;
	}
	return SIM_NONE;
}

bool machine_enter(struct machine *m)
{
	if (m->slot != SIM_NONE)
		return true;
	machine_lock(m);
	uint32_t slot = free_slot(m);
	if (slot == SIM_NONE) {
		machine_reap(m);
		slot = free_slot(m);
	}
	if (slot != SIM_NONE) {
		struct sim_process *p = &m->map->processes[slot];
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		memset(p, 0, sizeof(*p));
		p->pid = getpid();
		p->token = own_token();
		p->since_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
		p->used = 1;
		if (m->map->high <= slot)
			m->map->high = slot + 1;
		m->slot = slot;
	}
	machine_unlock(m);
	return slot != SIM_NONE;
}

uint32_t machine_gpu(const struct sim_map *map, uint32_t unit)
{
	const struct sim_instance *instance = mig_instance(map, unit);
	return instance ? instance->gpu : unit;
}

uint64_t machine_memory(const struct machine *m, uint32_t unit)
{
	const struct sim_instance *instance = mig_instance(m->map, unit);
	return instance ? m->shape.profiles[instance->profile].memory : m->shape.memory;
}

uint64_t machine_reserved(const struct machine *m, uint32_t unit)
{
	return mig_instance(m->map, unit) ? 0 : m->shape.reserved;
}

uint32_t machine_sms(const struct machine *m, uint32_t unit)
{
	const struct sim_instance *instance = mig_instance(m->map, unit);
	if (!instance)
		return m->shape.sms;
	const struct sim_profile *profile = &m->shape.profiles[instance->profile];
	return profile->sms * m->map->computes[unit - m->map->count].slices / profile->slices;
}

bool machine_linked(const struct machine *m, uint32_t a, uint32_t b)
{
	return a < m->map->count && b < m->map->count && shape_linked(&m->shape, a, b);
}

uint64_t machine_capacity(const struct machine *m, uint32_t unit)
{
	if (mig_is_gone(m->map, unit))
		return 0;
	return machine_memory(m, unit) - machine_reserved(m, unit) - BASELINE;
}

/* Compute instances of one GPU instance share its memory; a GPU in MIG mode has what its units have. */
static uint64_t used_bytes(const struct machine *m, uint32_t unit)
{
	const struct sim_instance *own = mig_instance(m->map, unit);
	uint64_t used = own ? 0 : m->map->gpus[unit].used;
	for (uint32_t other = m->map->count; other < machine_units(m->map); other++) {
		const struct sim_instance *theirs = mig_instance(m->map, other);
		if (theirs && (own ? theirs == own : theirs->gpu == unit))
			used += m->map->gpus[other].used;
	}
	return used;
}

static uint64_t free_bytes(const struct machine *m, uint32_t gpu)
{
	uint64_t capacity = machine_capacity(m, gpu), used = used_bytes(m, gpu);
	return used < capacity ? capacity - used : 0;
}

bool machine_take(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	if (free_bytes(m, gpu) < bytes)
		machine_reap(m);
	bool fits = free_bytes(m, gpu) >= bytes;
	if (fits) {
		m->map->processes[m->slot].usage[gpu].bytes += bytes;
		m->map->gpus[gpu].used += bytes;
	}
	machine_unlock(m);
	return fits;
}

void machine_give(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	m->map->processes[m->slot].usage[gpu].bytes -= bytes;
	m->map->gpus[gpu].used -= bytes;
	machine_unlock(m);
}

uint64_t machine_share(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	uint64_t id = ++m->map->share_count;
	struct sim_share *share = share_add(m->map, id, m->slot, gpu, bytes);
	machine_unlock(m);
	return share ? id : 0;
}

bool machine_join(struct machine *m, uint64_t id, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	machine_reap(m);
	struct sim_share *share = share_find(m->map, id);
	bool held = share != NULL;
	if (held)
		share->holds[m->slot]++;
	machine_unlock(m);
	if (held || !machine_take(m, gpu, bytes))
		return held;
	machine_lock(m);
	share = share_add(m->map, id, m->slot, gpu, bytes);
	machine_unlock(m);
	return share != NULL;
}

void machine_leave(struct machine *m, uint64_t id)
{
	machine_lock(m);
	struct sim_share *share = share_find(m->map, id);
	if (share)
		share_leave(m->map, share, m->slot);
	machine_unlock(m);
}

uint64_t machine_take_managed(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	if (free_bytes(m, gpu) < bytes)
		machine_reap(m);
	uint64_t most = free_bytes(m, gpu);
	uint64_t taken = bytes < most ? bytes : most;
	m->map->processes[m->slot].usage[gpu].managed += taken;
	m->map->gpus[gpu].used += taken;
	machine_unlock(m);
	return taken;
}

void machine_give_managed(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	m->map->processes[m->slot].usage[gpu].managed -= bytes;
	m->map->gpus[gpu].used -= bytes;
	machine_unlock(m);
}

void machine_count_contexts(struct machine *m, uint32_t gpu, int change)
{
	machine_lock(m);
	m->map->processes[m->slot].usage[gpu].contexts += (uint32_t)change;
	machine_unlock(m);
}

/* The state changes first: if we die half-way, the next process adds up the sums by the states. */
void machine_checkpoint(struct machine *m, struct sim_process *p)
{
	__atomic_store_n(&p->state, SIM_CHECKPOINTED, __ATOMIC_SEQ_CST);
	for (uint32_t g = 0; g < machine_units(m->map); g++)
		m->map->gpus[g].used -= p->usage[g].bytes + p->usage[g].managed;
}

static bool fits(const struct machine *m, const struct sim_process *p)
{
	for (uint32_t g = 0; g < machine_units(m->map); g++)
		if (free_bytes(m, g) < p->usage[g].bytes + p->usage[g].managed)
			return false;
	return true;
}

bool machine_restore(struct machine *m, struct sim_process *p)
{
	if (!fits(m, p))
		machine_reap(m);
	if (!fits(m, p))
		return false;
	__atomic_store_n(&p->state, SIM_LOCKED, __ATOMIC_SEQ_CST);
	for (uint32_t g = 0; g < machine_units(m->map); g++)
		m->map->gpus[g].used += p->usage[g].bytes + p->usage[g].managed;
	return true;
}

uint64_t machine_used(struct machine *m, uint32_t gpu)
{
	machine_lock(m);
	machine_reap(m);
	uint64_t used = used_bytes(m, gpu);
	machine_unlock(m);
	return used + BASELINE;
}

void machine_uuid(const struct machine *m, uint32_t gpu, uint8_t uuid[16])
{
	if (gpu >= m->map->count) {
		memcpy(uuid, m->map->computes[gpu - m->map->count].uuid, 16);
		return;
	}
	uint64_t words[2];
	uint64_t h = m->map->seed + 0x9e3779b97f4a7c15ull * (gpu + 1);
	for (int i = 0; i < 2; i++) {
		h ^= h >> 30;
		h *= 0xbf58476d1ce4e5b9ull;
		h ^= h >> 27;
		h *= 0x94d049bb133111ebull;
		words[i] = h ^ (h >> 31);
	}
	memcpy(uuid, words, 16);
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

void machine_uuid_text(const struct machine *m, uint32_t gpu, char out[48])
{
	uint8_t u[16];
	machine_uuid(m, gpu, u);
	snprintf(out, 48, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         gpu < m->map->count ? "GPU" : "MIG", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
	         u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}
