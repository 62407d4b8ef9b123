#include "held_memory.h"

#include "identity.h"
#include "log.h"
#include "mover_processes.h"
#include "residence.h"

#include <string.h>

#define OWNERS_MOST 256u /* programs that are told apart; a machine has far fewer */
#define NAMES_MOST 8u

struct owner {
	int32_t pid;
	uint64_t start_time;
};

struct owners {
	struct owner all[OWNERS_MOST];
	unsigned count;
};

static bool has_owner(const struct owners *owners, int32_t pid, uint64_t start_time)
{
	for (unsigned i = 0; i < owners->count; i++)
		if (owners->all[i].pid == pid && owners->all[i].start_time == start_time)
			return true;
	return false;
}

static void add_owner(struct owners *owners, int32_t pid, uint64_t start_time)
{
	if (owners->count < OWNERS_MOST && !has_owner(owners, pid, start_time))
		owners->all[owners->count++] = (struct owner){pid, start_time};
}

static bool is_alive(int32_t pid, uint64_t start_time)
{
	uint64_t now = 0;
	return !identity_start_time(pid, &now) && now == start_time;
}

/* Adds the living programs with copies in the arenas. The table counts, not the mover's own figures: a
 * mover that has just started may not have them yet. */
static void find_owners(const struct supervision *supervision, const struct aliquot_arena *arenas,
                        struct owners *out)
{
	struct owner last = {0}; /* copies of one program lie side by side */
	for (unsigned number = 0; number < ALIQUOT_MOVERS; number++) {
		if (!atomic_load(&supervision->movers[number].assigned))
			continue;
		for (uint32_t i = 0; i < ALIQUOT_EXTENTS; i++) {
			const struct aliquot_extent *extent = &arenas[number].extents[i];
			if (atomic_load(&extent->state) != ALIQUOT_EXTENT_WHOLE ||
			    (extent->pid == last.pid && extent->start_time == last.start_time))
				continue;
			last = (struct owner){extent->pid, extent->start_time};
			if (is_alive(last.pid, last.start_time))
				add_owner(out, last.pid, last.start_time);
		}
	}
}

/* Adds the programs of the grant whose memory is about to leave. */
static void find_leaving(const struct grant *grant, struct owners *out)
{
	for (uint32_t slot = 0; residence_is_away(grant) && slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		if (process && !process->ending && !residence_is_settled(process))
			add_owner(out, process->pid, process->start_time);
	}
}

static bool is_owned_by_grant(const struct grant *grant, const struct owners *owners)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		if (process && has_owner(owners, process->pid, process->start_time))
			return true;
	}
	return false;
}

/* Writes NAME, NAME, ... */
static void write_names(const struct arbiter *arbiter, const struct owners *owners, uint32_t reader,
                        char *out, size_t size)
{
	unsigned count = 0;
	size_t used = 0;
	snprintf(out, size, "grants that have ended");
	for (const struct grant *grant = arbiter->grants; grant && used < size; grant = grant->next) {
		if (!is_owned_by_grant(grant, owners))
			continue;
		const char *name = count < NAMES_MOST ? grant_name_for(grant, reader) : "...";
		used += (size_t)snprintf(out + used, size - used, "%s%s", count ? ", " : "", name);
		if (count++ == NAMES_MOST)
			return;
	}
}

bool held_memory_is_none(struct arbiter *arbiter, struct failure *failure)
{
	struct owners owners = {.count = 0};
	char names[320];
	if (!arbiter->movers.arenas)
		return true;
	find_owners(arbiter->supervision, arbiter->movers.arenas, &owners);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		find_leaving(grant, &owners);
	if (!owners.count)
		return true;
	write_names(arbiter, &owners, failure->reader, names, sizeof(names));
	return failure_set(
		failure, "holds-memory",
		"memory of %u program%s is on the host: resume or cancel suspended jobs first, "
		"and let parked programs return or end: %s",
		owners.count, plural(owners.count), names);
}

void held_memory_log_lost(const struct mover_processes *movers)
{
	struct owners owners = {.count = 0};
	if (!movers->exist)
		return;
	find_owners(movers->supervision, movers->pages, &owners);
	for (unsigned i = 0; i < owners.count; i++)
		log_event("process %d: its memory was on the host and is lost with the arbiter",
		          owners.all[i].pid);
}
