#include "measure.h"

#include "aliquot/ledger.h"
#include "context_sizes.h"
#include "findings.h"
#include "movers.h"
#include "parking.h"
#include "rotation.h"
#include "residence.h"
#include "unjoined.h"

#define PERIOD_NS (500 * MILLISECOND_NS)
#define ATTEMPTS 4
/* For the first context of a GPU: its program holds all free memory of the slice meanwhile, and what is
 * learned here every later context is charged. Less than the program's own patience (session.c). */
#define FIRST_CONTEXT_NS (4 * SECOND_NS)

/* Bytes on the GPU by the ledger, without managed memory, which may be elsewhere. */
static uint64_t counted_bytes(const struct process *process, uint32_t slice)
{
	struct aliquot_usage_slice *usage = &process->grant->usage->slices[slice];
	uint64_t held = ledger_held(usage, process->slot);
	uint64_t managed = atomic_load(&usage->entries[process->slot].managed);
	return managed < held ? held - managed : 0;
}

/* Writes the size of a context to the limits of all slices of the GPU. */
static void publish_context(struct arbiter *arbiter, const struct gpu *gpu)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++) {
			struct aliquot_slice_limits *slice = &grant->limits->slices[i];
			if (grant->gpus[i] != gpu)
				continue;
			atomic_store(&slice->context_bytes,
			             gpu_context_bytes(gpu, atomic_load(&slice->limit_bytes)));
			grant_publish(grant, GRANT_NO_SLOT);
		}
	}
}

/* The size of a context is the smallest figure of a process that has a context and nothing else. */
static void learn_context(struct process *process, uint32_t slice, uint64_t figure,
                          uint64_t for_context)
{
	struct grant *grant = process->grant;
	struct gpu *gpu = grant->gpus[slice];
	uint32_t bit = 1u << slice;
	if (process->measured & bit ||
	    grant->record->mps) /* a client's context is smaller than others */
		return;
	process->measured |= bit;
	uint64_t held = ledger_held(&grant->usage->slices[slice], process->slot);
	uint64_t expected = atomic_load(&grant->limits->slices[slice].context_bytes);
	if (held && held != ledger_round(expected) && held != for_context)
		return;
	if (gpu->context_bytes && gpu->context_bytes <= figure)
		return;
	gpu->context_bytes = figure;
	publish_context(grant->arbiter, gpu);
	context_sizes_keep(grant->arbiter->state, &grant->arbiter->nvml, gpu);
}

/* NVML has no figure for a process that has a context. The context is in the slice in which the process
 * has reserved memory for it: in its other slices NVML has no figure because there is none. */
static void estimate_context(const struct measurement *measurement, uint32_t slice)
{
	const struct process *process = measurement->process;
	struct gpu *gpu = process->grant->gpus[slice];
	uint64_t held = ledger_held(&process->grant->usage->slices[slice], process->slot);
	if (gpu->estimates || !measurement->for_context || held < measurement->for_context)
		return;
	gpu->estimates = true;
	publish_context(process->grant->arbiter, gpu);
}

/* False: it is the first answer that shows a rise. Of two the lower one counts. A program waits for the
 * measurement of a new context, and does nothing else there meanwhile. */
static bool is_final(struct measurement *measurement, uint32_t slice, uint64_t *driver)
{
	uint64_t known = atomic_load(&processes_page(measurement->process)->driver_bytes[slice]);
	uint64_t *first = &measurement->driver[slice];
	uint32_t bit = 1u << slice;
	if (measurement->risen & bit) {
		*driver = *first < *driver ? *first : *driver;
		return true;
	}
	if (*driver <= known || measurement->is_new_context)
		return true;
	*first = *driver;
	measurement->risen |= bit;
	measurement->most[slice] = 0;
	measurement->attempts = 0;
	return false;
}

static void record_driver_bytes(struct process *process, uint32_t slice, uint64_t now)
{
	_Atomic uint64_t *driver = &processes_page(process)->driver_bytes[slice];
	uint64_t *lower = &process->lower[slice];
	uint64_t known = atomic_load(driver);
	bool believed = now >= known || now == *lower;
	*lower = believed ? LOWER_NONE : now;
	if (!believed || now == known)
		return;
	atomic_store(driver, now);
	processes_sum_driver_bytes(process->grant, slice);
	grant_publish(process->grant, process->slot);
}

/* NVML does not list a frozen process, and reports less for one whose memory is away; afterwards it has what
 * it had. */
static bool can_be_measured(struct grant *grant)
{
	return grant_check(grant) && grant_state(grant) == ALIQUOT_GRANT_ACTIVE &&
	       !residence_is_away(grant) && !parking_moves(grant);
}

/* Takes the figure from the newest snapshot, which is newer than the request. */
static void read_slice(struct measurement *measurement, uint32_t slice,
                       const struct gpu_snapshot *snapshot)
{
	struct process *process = measurement->process;
	uint64_t after = counted_bytes(process, slice), *most = &measurement->most[slice];
	const struct gpu_client *client = gpu_client_find(snapshot, process->pid);
	uint64_t figure = client ? client->bytes : 0;
	bool steady = after == measurement->before[slice];
	uint32_t bit = 1u << slice;
	process->listed = client ? process->listed | bit : process->listed & ~bit;
	if (steady || after > *most)
		*most = after;
	if (!steady && measurement->attempts < ATTEMPTS)
		return;
	uint64_t driver = figure > *most ? figure - *most : 0;
	if (figure != NVML_UNKNOWN_BYTES && !is_final(measurement, slice, &driver))
		return;
	measurement->unread &= ~bit;
	if (figure != NVML_UNKNOWN_BYTES)
		record_driver_bytes(process, slice, driver);
	bool is_known = figure && figure != NVML_UNKNOWN_BYTES;
	if (measurement->is_new_context && steady && is_known)
		learn_context(process, slice, figure, measurement->for_context);
	if (!is_known)
		estimate_context(measurement, slice);
}

static void ask_nvml(struct measurement *measurement);

static void on_snapshots(struct observer_wait *wait, bool answered)
{
	struct measurement *measurement = CONTAINER(wait, struct measurement, wait);
	struct process *process = measurement->process;
	struct grant *grant = process->grant;
	for (uint32_t i = 0; i < grant->slice_count && can_be_measured(grant); i++) {
		const struct gpu_snapshot *snapshot = NULL;
		if (!(measurement->unread & 1u << i))
			continue;
		if (answered)
			snapshot = observer_latest(&grant->arbiter->observer, grant_gpu_number(grant, i));
		if (snapshot && snapshot->told) {
			read_slice(measurement, i, snapshot);
			continue;
		}
		measurement->unread &= ~(1u << i);
		estimate_context(measurement, i);
	}
	if (measurement->unread && can_be_measured(grant)) {
		ask_nvml(measurement);
		return;
	}
	processes_cancel_measurement(measurement);
	if (measurement->done)
		measurement->done(measurement, false);
}

static uint64_t patience_ns(const struct measurement *measurement)
{
	uint64_t until = measurement->begun_at + FIRST_CONTEXT_NS, now = loop_now();
	return measurement->for_context && now < until ? until - now : 0;
}

/* Reads the ledger for the slices that are not read yet, and asks NVML. */
static void ask_nvml(struct measurement *measurement)
{
	struct process *process = measurement->process;
	struct grant *grant = process->grant;
	uint64_t gpus = 0;
	measurement->attempts++;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		if (!(measurement->unread & 1u << i))
			continue;
		measurement->before[i] = counted_bytes(process, i);
		if (measurement->before[i] > measurement->most[i])
			measurement->most[i] = measurement->before[i];
		gpus |= UINT64_C(1) << grant_gpu_number(grant, i);
	}
	observer_wait(&grant->arbiter->observer, &measurement->wait, gpus, patience_ns(measurement),
	              on_snapshots);
}

bool measure_begin(struct measurement *measurement, struct process *process, bool is_new_context,
                   uint64_t for_context, void (*done)(struct measurement *measurement, bool left))
{
	struct grant *grant = process->grant;
	processes_cancel_measurement(measurement);
	*measurement = (struct measurement){
		.process = process,
		.next = process->measurements,
		.is_new_context = is_new_context,
		.for_context = for_context,
		.begun_at = loop_now(),
		.done = done,
	};
	process->measurements = measurement;
	for (uint32_t i = 0; i < grant->slice_count && can_be_measured(grant); i++)
		if (grant->gpus[i])
			measurement->unread |= 1u << i;
	if (measurement->unread)
		ask_nvml(measurement);
	else
		processes_cancel_measurement(measurement);
	return measurement->process;
}

void measure_on_timer(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, measure);
	observer_want(&arbiter->observer, observer_all(&arbiter->observer));
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++)
		if (arbiter->nvml.gpus[i].estimates) /* of slices that may have been resized */
			publish_context(arbiter, &arbiter->nvml.gpus[i]);
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		next = grant->next;
		processes_trim_files(grant);
		unjoined_forget_removed(grant);
		if (grant_check(grant))
			processes_drop_replaced(grant);
	}
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t slot = 0; slot < grant->process_end; slot++) {
			struct process *process = grant->processes[slot];
			if (process && !process->ending)
				processes_look_at_state(process);
			if (process && !process->ending && !process->regular.process)
				measure_begin(&process->regular, process, false, 0, NULL);
		}
	}
	credit_wake(&arbiter->credit); /* a RING may have been lost */
	findings_update(arbiter);
	movers_update(arbiter);
	rotation_update(arbiter);
	measure_start(arbiter);
}

void measure_start(struct arbiter *arbiter)
{
	if ((arbiter->live_count || unjoined_is_watching(arbiter)) && !arbiter->measure.due)
		loop_timer_set(&arbiter->loop, &arbiter->measure, loop_now() + PERIOD_NS);
}
