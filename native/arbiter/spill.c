#include "spill.h"

#include "aliquot/arena.h"
#include "aliquot/host.h"
#include "aliquot/ledger.h"
#include "mover_processes.h"

uint64_t spill_limit(const struct grant *grant)
{
	return grant->limits ? aliquot_limits_spill(grant->limits) : 0;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
	return value < most ? value : most;
}

/* A tenant can write anything into its ledger. */
static uint64_t used_bytes(const struct grant *grant)
{
	uint64_t used = grant->usage ? ledger_total(&grant->usage->slices[ALIQUOT_HOST_SLICE]) : 0;
	return at_most(used, spill_limit(grant));
}

uint64_t spill_granted_bytes(const struct arbiter *arbiter)
{
	uint64_t sum = 0;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		sum += spill_limit(grant);
	return sum;
}

/* Granted, and not yet taken from the host. */
static uint64_t unused_bytes(const struct arbiter *arbiter)
{
	uint64_t sum = 0;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		sum += spill_limit(grant) - used_bytes(grant);
	return sum;
}

static uint64_t bytes_of_movers(const struct arbiter *arbiter)
{
	uint64_t sum = 0;
	for (unsigned i = 0; arbiter->movers.arenas && i < ALIQUOT_MOVERS; i++)
		sum += atomic_load(&arbiter->movers.arenas[i].grown_bytes);
	return sum;
}

static uint64_t left_of(uint64_t all, uint64_t taken)
{
	return taken < all ? all - taken : 0;
}

bool spill_check(const struct arbiter *arbiter, uint64_t bytes, uint64_t set_aside,
                 struct failure *failure)
{
	uint64_t most = arbiter->movers.processes->most_bytes;
	uint64_t granted = spill_granted_bytes(arbiter), moved = bytes_of_movers(arbiter);
	struct aliquot_host host = aliquot_host_read();
	if (moved < set_aside)
		moved = set_aside;
	if (!bytes)
		return true;
	if (bytes > left_of(most, granted + moved))
		return failure_set(
			failure, "no-host-memory",
			"%llu MiB of the host are left for programs on GPUs, of %llu MiB (%llu MiB "
			"granted, %llu MiB for memory that leaves GPUs): %llu MiB requested",
			mib_of(left_of(most, granted + moved)), mib_of(most), mib_for(granted), mib_for(moved),
			mib_for(bytes));
	if (bytes > left_of(aliquot_host_room(&host), unused_bytes(arbiter)))
		return failure_set(
			failure, "no-host-memory",
			"the host has %llu MiB free, of which %llu MiB must stay free and %llu MiB are "
			"granted: %llu MiB requested",
			mib_of(host.available_bytes), mib_for(aliquot_host_spare(&host)),
			mib_for(unused_bytes(arbiter)), mib_for(bytes));
	return true;
}

void spill_write(const struct grant *grant, struct json *out)
{
	json_number(out, "spill_bytes", spill_limit(grant));
	json_number(out, "on_host_bytes", used_bytes(grant));
}

void spill_write_process(const struct process *process, struct json *out)
{
	const struct grant *grant = process->grant;
	if (!spill_limit(grant) || !grant->usage)
		return;
	uint64_t held = ledger_held(&grant->usage->slices[ALIQUOT_HOST_SLICE], process->slot);
	json_number(out, "on_host_bytes", at_most(held, spill_limit(grant)));
}
