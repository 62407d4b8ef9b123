#include "measure.h"

#include "aliquot/ledger.h"
#include "findings.h"
#include "processes.h"

#include <stdlib.h>

#define PERIOD_NS (500 * MILLISECOND_NS)
#define ATTEMPTS 4

/* One process on one GPU, between two reads of its ledger entry. */
struct reading {
	struct process *process;
	uint32_t slice;
	uint64_t before, most; /* bytes on the GPU by the ledger */
	uint64_t figure;       /* bytes by NVML */
	bool done;
};

static struct {
	struct reading *readings;
	size_t count, size;
} batch;

void measure_close(void)
{
	free(batch.readings);
	batch.readings = NULL;
	batch.count = batch.size = 0;
}

static void add_reading(struct process *process, uint32_t slice)
{
	if (batch.count == batch.size) {
		size_t size = batch.size ? batch.size * 2 : 64;
		struct reading *readings = realloc(batch.readings, size * sizeof(*readings));
		if (!readings)
			return; /* it is measured next time */
		batch.readings = readings;
		batch.size = size;
	}
	batch.readings[batch.count++] = (struct reading){.process = process, .slice = slice};
}

/* Bytes on the GPU by the ledger, without managed memory, which may be elsewhere. */
static uint64_t counted_bytes(const struct reading *reading)
{
	uint32_t slot = reading->process->slot;
	struct aliquot_usage_slice *usage = &reading->process->grant->usage->slices[reading->slice];
	uint64_t held = ledger_held(usage, slot), managed = atomic_load(&usage->entries[slot].managed);
	return managed < held ? held - managed : 0;
}

/* The size of a context is the smallest figure of a process that has a context and nothing else. */
static void learn_context(struct reading *reading, uint64_t for_context)
{
	struct process *process = reading->process;
	struct grant *grant = process->grant;
	struct gpu *gpu = grant->gpus[reading->slice];
	uint32_t bit = 1u << reading->slice;
	if (!reading->figure || process->measured & bit)
		return;
	process->measured |= bit;
	uint64_t held = ledger_held(&grant->usage->slices[reading->slice], process->slot);
	uint64_t expected = atomic_load(&grant->limits->slices[reading->slice].context_bytes);
	if (held && held != ledger_round(expected) && held != for_context)
		return;
	if (gpu->context_bytes && gpu->context_bytes <= reading->figure)
		return;
	gpu->context_bytes = reading->figure;
	for (struct grant *each = grant->arbiter->grants; each; each = each->next)
		for (uint32_t i = 0; each->limits && i < each->slice_count; i++)
			if (each->gpus[i] == gpu) {
				atomic_store(&each->limits->slices[i].context_bytes, gpu->context_bytes);
				grant_publish(each, GRANT_NO_SLOT);
			}
}

static void record_driver_bytes(const struct reading *reading)
{
	struct process *process = reading->process;
	struct grant *grant = process->grant;
	_Atomic uint64_t *driver = &grant->limits->processes[process->slot]
	                                .driver_bytes[reading->slice];
	uint64_t *lower = &process->lower[reading->slice];
	uint64_t now = reading->figure > reading->most ? reading->figure - reading->most : 0;
	uint64_t known = atomic_load(driver);
	bool believed = now >= known || now == *lower;
	*lower = believed ? LOWER_NONE : now;
	if (!believed || now == known)
		return;
	atomic_store(driver, now);
	processes_sum_driver_bytes(grant, reading->slice);
	grant_publish(grant, process->slot);
}

/* Reads the ledger, NVML and the ledger again; false: NVML could not tell. */
static bool read_once(struct arbiter *arbiter, const struct gpu *gpu, size_t *unread)
{
	struct gpu_clients clients;
	for (size_t i = 0; i < batch.count; i++) {
		struct reading *reading = &batch.readings[i];
		if (!reading->done)
			reading->before = counted_bytes(reading);
		if (reading->before > reading->most)
			reading->most = reading->before;
	}
	if (!nvml_clients(&arbiter->nvml, gpu, &clients))
		return false;
	for (size_t i = 0; i < batch.count; i++) {
		struct reading *reading = &batch.readings[i];
		if (reading->done)
			continue;
		const struct gpu_client *client = gpu_client_find(&clients, reading->process->pid);
		uint64_t after = counted_bytes(reading);
		uint32_t bit = 1u << reading->slice, *listed = &reading->process->listed;
		*listed = client ? *listed | bit : *listed & ~bit;
		reading->figure = client ? client->bytes : 0;
		if (after == reading->before)
			reading->most = after;
		else if (after > reading->most)
			reading->most = after;
		reading->done = after == reading->before;
		*unread -= reading->done;
	}
	return true;
}

/* Measures the batch, whose readings are all of one GPU. */
static void measure_batch(struct arbiter *arbiter, const struct gpu *gpu, bool new_context,
                          uint64_t for_context)
{
	size_t unread = batch.count;
	for (int attempt = 0; unread && attempt < ATTEMPTS; attempt++)
		if (!read_once(arbiter, gpu, &unread))
			return;
	for (size_t i = 0; i < batch.count; i++) {
		struct reading *reading = &batch.readings[i];
		if (reading->figure == NVML_UNKNOWN_BYTES || !grant_check(reading->process->grant))
			continue;
		record_driver_bytes(reading);
		if (new_context && reading->done)
			learn_context(reading, for_context);
	}
}

/* NVML does not list a frozen process; after the thaw it has what it had. */
static bool can_be_measured(struct grant *grant)
{
	return grant_check(grant) && grant_state(grant) == ALIQUOT_GRANT_ACTIVE;
}

void measure_process(struct process *process, bool new_context, uint64_t for_context)
{
	struct grant *grant = process->grant;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		if (!can_be_measured(grant) || !grant->gpus[i])
			continue;
		batch.count = 0;
		add_reading(process, i);
		measure_batch(grant->arbiter, grant->gpus[i], new_context, for_context);
	}
}

static void add_readings(struct grant *grant, const struct gpu *gpu)
{
	for (uint32_t i = 0; i < grant->slice_count; i++)
		for (uint32_t slot = 0; grant->gpus[i] == gpu && slot < grant->process_end; slot++)
			if (grant->processes[slot] && !grant->processes[slot]->ending)
				add_reading(grant->processes[slot], i);
}

void measure_on_timer(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, measure);
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++) {
		struct gpu *gpu = &arbiter->nvml.gpus[i];
		batch.count = 0;
		for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
			if (can_be_measured(grant))
				add_readings(grant, gpu);
		if (batch.count)
			measure_batch(arbiter, gpu, false, 0);
	}
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		next = grant->next;
		if (grant_check(grant))
			processes_drop_replaced(grant);
	}
	credit_wake(&arbiter->credit); /* a RING may have been lost */
	findings_update(arbiter);
	measure_start(arbiter);
}

void measure_start(struct arbiter *arbiter)
{
	if (arbiter->live_count && !arbiter->measure.due)
		loop_timer_set(&arbiter->loop, &arbiter->measure, loop_now() + PERIOD_NS);
}
