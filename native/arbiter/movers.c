#include "movers.h"

#include "aliquot/arena.h"
#include "aliquot/descriptors.h"
#include "aliquot/ledger.h"
#include "log.h"
#include "mover_processes.h"
#include "processes.h"
#include "residence.h"
#include "spill.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of a context, where no program has shown it yet (seen on an H200). */
#define CONTEXT_BYTES (UINT64_C(524) << 20)

#define LEAST_WANTED (UINT64_C(1) << 20)

#define NO_MOVER ALIQUOT_MOVERS

void movers_open(struct movers *movers, const struct mover_processes *processes)
{
	*movers = (struct movers){
		.processes = processes,
		.arenas = processes->exist ? processes->pages : NULL,
	};
	memcpy(movers->why_not, processes->why_not, sizeof(movers->why_not));
}

static struct mover_slot *slot_at(struct arbiter *arbiter, unsigned number)
{
	return &arbiter->supervision->movers[number];
}

/* The number of the GPU's mover; NO_MOVER: it has had none. */
static unsigned number_of(struct arbiter *arbiter, const struct gpu *gpu)
{
	for (unsigned i = 0; arbiter->movers.arenas && i < ALIQUOT_MOVERS; i++) {
		struct mover_slot *slot = slot_at(arbiter, i);
		if (atomic_load(&slot->assigned) && !memcmp(slot->uuid, gpu->uuid, sizeof(slot->uuid)))
			return i;
	}
	return NO_MOVER;
}

/* The same, and gives it a number if it has none. */
static unsigned assign(struct arbiter *arbiter, const struct gpu *gpu)
{
	unsigned number = number_of(arbiter, gpu);
	for (unsigned i = 0; arbiter->movers.arenas && number == NO_MOVER && i < ALIQUOT_MOVERS; i++) {
		struct mover_slot *slot = slot_at(arbiter, i);
		if (atomic_load(&slot->assigned))
			continue;
		memcpy(slot->uuid, gpu->uuid, sizeof(slot->uuid));
		atomic_store(&slot->assigned, 1);
		number = i;
	}
	return number;
}

/* Sends an order, with a descriptor if that is not -1. */
static bool send_order(struct arbiter *arbiter, unsigned number, enum aliquot_order_kind kind,
                       const struct process *process, uint64_t bytes, int fd)
{
	struct aliquot_order order = {
		.magic = ALIQUOT_ORDER_MAGIC,
		.version = ALIQUOT_ARENA_VERSION,
		.kind = (uint16_t)kind,
		.pid = process ? process->pid : 0,
		.start_time = process ? process->start_time : 0,
		.grant = process ? process->grant->limits->created_ns : 0,
		.bytes = bytes,
	};
	int socket = arbiter->movers.processes->all[number].orders[0];
	return aliquot_send_descriptors(socket, &order, sizeof(order), &fd, fd >= 0, MSG_DONTWAIT) ==
	       (ssize_t)sizeof(order);
}

int movers_connect(const struct process *process, uint32_t slice, char why[static 100])
{
	struct grant *grant = process->grant;
	struct arbiter *arbiter = grant->arbiter;
	struct gpu *gpu = grant->gpus[slice];
	int ends[2];
	unsigned number = gpu ? assign(arbiter, gpu) : NO_MOVER;
	if (number == NO_MOVER) {
		snprintf(why, 100, "%s",
		         !gpu                     ? "the machine no longer has this GPU"
		         : arbiter->movers.arenas ? "too many GPUs have movers"
		                                  : arbiter->movers.why_not);
		return -1;
	}
	struct mover_slot *slot = slot_at(arbiter, number);
	if (loop_now() < atomic_load(&slot->rests_until)) {
		unsigned because = atomic_load(&slot->rests_because);
		snprintf(why, 100, "the mover of GPU %u %s: try again in 10 s", gpu->index,
		         because == MOVER_HUNG   ? "has hung too often"
		         : because == MOVER_DIED ? "has died too often"
		                                 : "could not be started");
		return -1;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		snprintf(why, 100, "no connection to the mover: %s", strerror(errno));
		return -1;
	}
	uint64_t most = atomic_load(&grant->limits->slices[slice].limit_bytes);
	bool sent = send_order(arbiter, number, ALIQUOT_ORDER_SERVE, process, most, ends[0]);
	if (!sent)
		snprintf(why, 100, "the mover of GPU %u does not answer: %s", gpu->index, strerror(errno));
	close(ends[0]);
	if (sent)
		return ends[1];
	close(ends[1]);
	return -1;
}

void movers_forget(const struct process *process)
{
	struct grant *grant = process->grant;
	struct arbiter *arbiter = grant->arbiter;
	if (!residence_is_swappable(grant))
		return;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		unsigned number = grant->gpus[i] ? number_of(arbiter, grant->gpus[i]) : NO_MOVER;
		if (number == NO_MOVER)
			continue;
		/* If it is lost, the mover still finds the dead by itself. */
		if (atomic_load(&slot_at(arbiter, number)->pid) ||
		    atomic_load(&arbiter->movers.arenas[number].extent_count))
			send_order(arbiter, number, ALIQUOT_ORDER_FORGET, process, 0, -1);
	}
}

/* The most that the programs of a swappable grant have had at a time: they will have it again. At least
 * LEAST_WANTED: the grant needs a mover before its programs have anything. */
static uint64_t wanted_by(struct grant *grant)
{
	uint64_t limit = atomic_load(&grant->limits->slices[0].limit_bytes);
	uint64_t now = grant->usage ? ledger_total(&grant->usage->slices[0]) : 0;
	if (now > limit) /* a tenant can write anything there */
		now = limit;
	if (now > grant->most_charged)
		grant->most_charged = now;
	return grant->most_charged > LEAST_WANTED ? grant->most_charged : LEAST_WANTED;
}

/* What the swappable grants of the GPU may move to the host; 0: there are none. */
static uint64_t swappable_bytes(struct arbiter *arbiter, const struct gpu *gpu)
{
	uint64_t sum = 0;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (residence_is_swappable(grant) && grant->gpus[0] == gpu)
			sum += wanted_by(grant);
	return sum;
}

/* Whether a slice of priority latency has that GPU: copies of its programs must not wait behind long ones. */
static bool is_beside_latency(const struct arbiter *arbiter, const struct gpu *gpu)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++)
			if (grant->gpus[i] == gpu && grant_state(grant) != ALIQUOT_GRANT_PARKED &&
			    atomic_load(&grant->limits->slices[i].priority) == ALIQUOT_LATENCY)
				return true;
	return false;
}

void movers_update(struct arbiter *arbiter)
{
	if (arbiter->movers.arenas)
		atomic_store(&arbiter->movers.arenas[0].spill_bytes, spill_granted_bytes(arbiter));
	for (unsigned i = 0; arbiter->movers.arenas && i < arbiter->nvml.gpu_count; i++) {
		const struct gpu *gpu = &arbiter->nvml.gpus[i];
		uint64_t wanted = swappable_bytes(arbiter, gpu);
		unsigned number = wanted ? assign(arbiter, gpu) : number_of(arbiter, gpu);
		if (number == NO_MOVER)
			continue;
		atomic_store(&arbiter->movers.arenas[number].beside_latency,
		             is_beside_latency(arbiter, gpu));
		uint64_t before = atomic_exchange(&arbiter->movers.arenas[number].wanted_bytes, wanted);
		bool runs = atomic_load(&slot_at(arbiter, number)->pid);
		if (wanted != before && (wanted || runs))
			send_order(arbiter, number, ALIQUOT_ORDER_LOOK, NULL, 0, -1);
	}
}

static int32_t pid_of(struct arbiter *arbiter, const struct gpu *gpu)
{
	unsigned number = number_of(arbiter, gpu);
	return number == NO_MOVER ? 0 : atomic_load(&slot_at(arbiter, number)->pid);
}

static uint64_t expected_bytes(const struct gpu *gpu)
{
	return gpu->context_bytes ? gpu->context_bytes : CONTEXT_BYTES;
}

/* As NVML tells, or as expected before it does. */
static uint64_t bytes_of(struct arbiter *arbiter, const struct gpu *gpu, int32_t pid)
{
	unsigned index = (unsigned)(gpu - arbiter->nvml.gpus);
	const struct gpu_snapshot *snapshot = observer_latest(&arbiter->observer, index);
	const struct gpu_client *client = snapshot && pid ? gpu_client_find(snapshot, pid) : NULL;
	bool is_known = client && client->bytes && client->bytes != NVML_UNKNOWN_BYTES;
	return is_known ? client->bytes : expected_bytes(gpu);
}

uint64_t movers_bytes(struct arbiter *arbiter, const struct gpu *gpu)
{
	int32_t pid = pid_of(arbiter, gpu);
	bool needed = arbiter->movers.arenas && swappable_bytes(arbiter, gpu);
	return pid || needed ? bytes_of(arbiter, gpu, pid) : 0;
}

uint64_t movers_new_bytes(struct arbiter *arbiter, const struct gpu *gpu)
{
	return arbiter->movers.arenas && !movers_bytes(arbiter, gpu) ? expected_bytes(gpu) : 0;
}

bool movers_has_pid(struct arbiter *arbiter, const struct gpu *gpu, int32_t pid)
{
	return pid && pid_of(arbiter, gpu) == pid;
}

void movers_write(struct arbiter *arbiter, const struct gpu *gpu, struct json *out)
{
	unsigned number = number_of(arbiter, gpu);
	if (number == NO_MOVER) {
		json_string(out, "mover", NULL);
		return;
	}
	const struct aliquot_arena *arena = &arbiter->movers.arenas[number];
	json_open(out, "mover", '{');
	json_number(out, "pid", (uint32_t)pid_of(arbiter, gpu));
	json_number(out, "starts", atomic_load(&slot_at(arbiter, number)->starts));
	json_number(out, "hangs", atomic_load(&slot_at(arbiter, number)->hangs));
	json_number(out, "silent_seconds",
	            atomic_load(&slot_at(arbiter, number)->silent_looks) * MOVER_LOOK_SECONDS);
	json_number(out, "bytes", movers_bytes(arbiter, gpu));
	json_number(out, "host_bytes", atomic_load(&arena->grown_bytes));
	json_number(out, "ready_bytes", atomic_load(&arena->registered_bytes));
	json_number(out, "held_bytes", atomic_load(&arena->held_bytes));
	json_number(out, "wanted_bytes", atomic_load(&arena->wanted_bytes));
	json_number(out, "copies", atomic_load(&arena->extent_count));
	json_number(out, "connections", atomic_load(&arena->connection_count));
	json_close(out, '}');
}
