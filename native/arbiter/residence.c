#include "residence.h"

#include "aliquot/ledger.h"
#include "enum_names.h"
#include "log.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The count of changes is above the bit. */
#define ONE_CHANGE (2 * ALIQUOT_ON_HOST)

static const char *place_of(uint32_t word)
{
	return enum_name(&enum_names_residence, word & ALIQUOT_ON_HOST);
}

static uint32_t wanted(const struct grant *grant)
{
	return grant->limits ? atomic_load(&grant->limits->slices[0].residence) : 0;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
	return value < most ? value : most;
}

bool residence_is_swappable(const struct grant *grant)
{
	return grant->limits && atomic_load(&grant->limits->slices[0].swap);
}

bool residence_is_away(const struct grant *grant)
{
	return residence_is_swappable(grant) && wanted(grant) & ALIQUOT_ON_HOST;
}

uint64_t residence_fixed_bytes(const struct grant *grant)
{
	uint64_t sum = 0;
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		const struct aliquot_work_slice *work = process ? process->pages.work : NULL;
		uint64_t charged = grant->usage ? ledger_held(&grant->usage->slices[0], slot) : 0;
		sum += at_most(work ? atomic_load(&work->fixed_bytes) : 0, charged);
	}
	return sum;
}

uint64_t residence_staying_bytes(const struct grant *grant)
{
	bool stays = residence_is_swappable(grant) && grant->process_count;
	return stays ? grant->record->staying_bytes : 0;
}

bool residence_needs_snapshot(const struct grant *grant)
{
	return residence_is_swappable(grant) && grant->process_count && grant->gpus[0];
}

void residence_sum(const struct grant *grant, struct residence_sum *out)
{
	*out = (struct residence_sum){0};
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		const struct aliquot_work_slice *work = process ? process->pages.work : NULL;
		if (!process || !grant->usage)
			continue;
		uint64_t charged = ledger_held(&grant->usage->slices[0], process->slot);
		uint64_t fixed = at_most(work ? atomic_load(&work->fixed_bytes) : charged, charged);
		out->charged_bytes += charged;
		out->movable_bytes += charged - fixed;
		out->away_bytes += at_most(work ? atomic_load(&work->away_bytes) : 0, charged - fixed);
	}
}

/* What its processes use of the GPU; UINT64_MAX: NVML does not know. */
static uint64_t used_bytes(const struct grant *grant, const struct gpu_snapshot *snapshot)
{
	uint64_t sum = grant->unjoined_bytes[0];
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		const struct gpu_client *client = process ? gpu_client_find(snapshot, process->pid) : NULL;
		if (client && client->bytes == NVML_UNKNOWN_BYTES)
			return UINT64_MAX;
		sum += client ? client->bytes : 0;
	}
	return sum;
}

void residence_take_staying(struct grant *grant, bool answered)
{
	const struct gpu_snapshot *snapshot = NULL;
	if (answered && grant->gpus[0])
		snapshot = observer_latest(&grant->arbiter->observer, grant_gpu_number(grant, 0));
	uint64_t bytes = snapshot && snapshot->told ? used_bytes(grant, snapshot) : UINT64_MAX;
	if (bytes == UINT64_MAX)
		bytes = atomic_load(&grant->limits->slices[0].limit_bytes);
	grant->record->staying_bytes = bytes;
}

void residence_on_snapshot(struct arbiter *arbiter, unsigned gpu)
{
	const struct gpu_snapshot *snapshot = observer_latest(&arbiter->observer, gpu);
	if (!snapshot || !snapshot->told) /* what was known holds: nothing comes back meanwhile */
		return;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant_state(grant) == ALIQUOT_GRANT_PARKED && residence_needs_snapshot(grant) &&
		    grant_gpu_number(grant, 0) == gpu)
			residence_take_staying(grant, true);
}

void residence_wake(const struct grant *grant)
{
	if (grant->view && residence_is_swappable(grant))
		syscall(SYS_futex, &grant->view->slices[0].residence, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Says where the memory shall be, and how much of it leaves (layout.h). In this order: who sees the word sees
 * the part. */
static void set_word(struct grant *grant, bool on_host, uint32_t leave_parts)
{
	uint32_t word = (wanted(grant) & ~ALIQUOT_ON_HOST) + ONE_CHANGE +
	                (on_host ? ALIQUOT_ON_HOST : 0);
	atomic_store(&grant->limits->slices[0].leave_parts, leave_parts);
	grant_publish(grant, GRANT_NO_SLOT);
	atomic_store(&grant->limits->slices[0].residence, word);
	grant_publish(grant, GRANT_NO_SLOT);
	residence_wake(grant);
}

/* What shall leave, in parts of ALIQUOT_LEAVE_WHOLE. */
static uint32_t part_of(uint32_t leave_parts)
{
	return leave_parts && leave_parts <= ALIQUOT_LEAVE_WHOLE ? leave_parts - 1
	                                                         : ALIQUOT_LEAVE_WHOLE;
}

bool residence_leave(struct grant *grant, uint32_t leave_parts)
{
	uint32_t before = atomic_load(&grant->limits->slices[0].leave_parts);
	if (residence_is_away(grant) && part_of(before) >= part_of(leave_parts))
		return false;
	set_word(grant, true, leave_parts);
	log_event("grant %s: %u %% of its memory shall be on the host", grant->name,
	          (100 * part_of(leave_parts) + ALIQUOT_LEAVE_WHOLE - 1) / ALIQUOT_LEAVE_WHOLE);
	return true;
}

void residence_refuse(struct grant *grant, bool refused)
{
	uint32_t word = refused ? wanted(grant) : 0;
	if (!grant->limits || atomic_load(&grant->limits->slices[0].refused) == word)
		return;
	atomic_store(&grant->limits->slices[0].refused, word);
	grant_publish(grant, GRANT_NO_SLOT);
}

bool residence_leaves_whole(const struct grant *grant)
{
	return residence_is_away(grant) &&
	       part_of(atomic_load(&grant->limits->slices[0].leave_parts)) == ALIQUOT_LEAVE_WHOLE;
}

bool residence_set(struct grant *grant, bool on_host, struct failure *failure)
{
	uint32_t word = wanted(grant);
	if (!residence_is_swappable(grant))
		return failure_set(failure, "not-swappable",
		                   "grant %s was not made with swap=1: its memory cannot leave the GPU",
		                   grant_name_for(grant, failure->reader));
	if (on_host == !!(word & ALIQUOT_ON_HOST))
		return true;
	if (!on_host && grant_state(grant) == ALIQUOT_GRANT_PARKED)
		return failure_set(failure, "parked",
		                   "grant %s is parked: its memory can return when it is switching",
		                   grant_name_for(grant, failure->reader));
	set_word(grant, on_host, 0);
	log_event("grant %s: its memory shall be on the %s", grant->name, place_of(wanted(grant)));
	return true;
}

void residence_write(const struct grant *grant, struct json *out)
{
	bool swappable = residence_is_swappable(grant);
	json_bool(out, "swap", swappable);
	json_string(out, "residence", swappable ? place_of(wanted(grant)) : NULL);
	json_number(out, "moves", wanted(grant) / ONE_CHANGE);
}

bool residence_is_settled(const struct process *process)
{
	const struct aliquot_work_slice *work = process->pages.work;
	return work && atomic_load(&work->residence) == wanted(process->grant);
}

void residence_write_process(const struct process *process, struct json *out)
{
	const struct grant *grant = process->grant;
	const struct aliquot_work_slice *work = process->pages.work;
	uint64_t charged = grant->usage ? ledger_held(&grant->usage->slices[0], process->slot) : 0;
	if (!residence_is_swappable(grant))
		return;
	uint32_t word = work ? atomic_load(&work->residence) : 0;
	uint32_t failed = work ? atomic_load(&work->move_failed) : 0;
	uint64_t away = at_most(work ? atomic_load(&work->away_bytes) : 0, charged);
	uint64_t fixed = at_most(work ? atomic_load(&work->fixed_bytes) : 0, charged - away);
	json_bool(out, "settled", residence_is_settled(process));
	json_string(out, "residence", place_of(word));
	json_number(out, "away_bytes", away);
	json_number(out, "fixed_bytes", fixed);
	json_string(out, "move_failed", failed ? enum_name(&enum_names_move_failure, failed) : NULL);
}
