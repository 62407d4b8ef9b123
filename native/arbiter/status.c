#include "status.h"

#include "aliquot/ledger.h"
#include "capacity.h"
#include "enum_names.h"
#include "grants.h"
#include "mover_processes.h"
#include "movers.h"
#include "mps.h"
#include "page_file.h"
#include "parking.h"
#include "rotation.h"
#include "processes.h"
#include "residence.h"
#include "spill.h"
#include "unjoined.h"

#include <string.h>
#include <unistd.h>

/* Whether the process is in a grant that has a slice of this GPU. */
static bool is_in_grant(struct arbiter *arbiter, const struct gpu *gpu, int32_t pid)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t i = 0; i < grant->slice_count; i++)
			for (uint32_t slot = 0; grant->gpus[i] == gpu && slot < grant->process_end; slot++)
				if (grant->processes[slot] && grant->processes[slot]->pid == pid)
					return true;
	return false;
}

static void write_strangers(struct arbiter *arbiter, const struct gpu *gpu,
                            const struct gpu_snapshot *snapshot, struct json *out)
{
	json_open(out, "strangers", '[');
	for (size_t i = 0; snapshot && i < snapshot->count; i++) {
		const struct gpu_client *client = &snapshot->clients[i];
		char name[PROCESS_NAME_SIZE];
		if (is_in_grant(arbiter, gpu, client->pid) || movers_has_pid(arbiter, gpu, client->pid))
			continue;
		identity_name(client->pid, name);
		json_open(out, NULL, '{');
		json_number(out, "pid", (uint32_t)client->pid);
		json_string(out, "name", name);
		json_number(out, "bytes", client->bytes == NVML_UNKNOWN_BYTES ? 0 : client->bytes);
		json_close(out, '}');
	}
	json_close(out, ']');
}

static void write_figures(const struct gpu_figures *figures, struct json *out)
{
	if (!figures->known)
		return;
	json_open(out, "figures", '{');
	json_number(out, "cores", figures->cores);
	json_number(out, "clock_mhz", figures->clock_mhz);
	json_open(out, "capability", '[');
	json_number(out, NULL, (uint32_t)figures->major);
	json_number(out, NULL, (uint32_t)figures->minor);
	json_close(out, ']');
	json_number(out, "bus", figures->bus_bits);
	json_number(out, "memory_mhz", figures->memory_mhz);
	json_close(out, '}');
}

static void write_gpu(struct arbiter *arbiter, const struct gpu *gpu, struct json *out)
{
	unsigned number = (unsigned)(gpu - arbiter->nvml.gpus);
	const struct gpu_snapshot *snapshot = observer_latest(&arbiter->observer, number);
	json_open(out, NULL, '{');
	json_number(out, "index", gpu->index);
	json_string(out, "uuid", gpu->uuid_text);
	json_string(out, "name", gpu->name);
	json_string(out, "pci_bus_id", gpu->pci_bus_id);
	json_bool(out, "mig", gpu->divided);
	if (gpu->instance)
		json_number(out, "instance_of", gpu->parent);
	else
		json_string(out, "instance_of", NULL);
	json_bool(out, "gone", gpu->gone);
	json_number(out, "memory_bytes", gpu->memory_bytes);
	json_number(out, "used_bytes", snapshot && snapshot->knows_used ? snapshot->used_bytes : 0);
	json_bool(out, "answers", snapshot && snapshot->knows_used);
	json_number(out, "granted_bytes", capacity_granted_bytes(arbiter, gpu));
	json_number(out, "context_bytes", gpu_context_bytes(gpu, gpu->memory_bytes));
	json_bool(out, "context_is_measured", gpu->context_bytes);
	movers_write(arbiter, gpu, out);
	rotation_write_gpu(arbiter, number, out);
	json_bool(out, "allows_mps", mps_is_allowed(arbiter->mps, gpu->uuid));
	write_figures(&gpu->figures, out);
	write_strangers(arbiter, gpu, snapshot, out);
	json_open(out, "compute", '{');
	json_bool(out, "contended", credit_is_contended(&arbiter->credit, number));
	json_close(out, '}');
	json_close(out, '}');
}

static void write_uuid(const struct aliquot_slice_limits *slice, struct json *out)
{
	char uuid[ALIQUOT_UUID_TEXT_SIZE];
	aliquot_uuid_write(slice->uuid, slice->instance, uuid);
	json_string(out, "gpu", uuid);
}

static const char *turn_of(const struct credit_figures *figures)
{
	if (!figures->active)
		return "idle";
	return figures->contended ? enum_name(&enum_names_turn, figures->state) : "alone";
}

static uint64_t quantile_ns(const struct credit_figures *figures, double part)
{
	return (uint64_t)(turns_wait_quantile(&figures->turns, part) * (double)SECOND_NS);
}

static void write_compute(struct grant *grant, uint32_t i, struct json *out)
{
	struct credit_figures figures;
	credit_read(grant, i, &figures);
	json_open(out, "compute", '{');
	json_string(out, "gates", enum_name(&enum_names_gates, figures.gates));
	json_number(out, "why", figures.why);
	json_string(out, "state", turn_of(&figures));
	json_number(out, "weight_percent", (uint64_t)(figures.weight + 0.5));
	json_number(out, "used_ns", figures.usage.total_ns);
	json_number(out, "handovers", figures.turns.handovers);
	json_number(out, "fallbacks", figures.turns.fallbacks);
	json_number(out, "backlog", figures.backlog);
	json_number(out, "waits", figures.turns.waits);
	json_number(out, "waited_ns", figures.turns.waited_ns);
	json_number(out, "wait_p50_ns", quantile_ns(&figures, 0.5));
	json_number(out, "wait_p99_ns", quantile_ns(&figures, 0.99));
	json_number(out, "recent_used_ns", figures.usage.recent_ns);
	json_number(out, "recent_ns", figures.usage.window_ns);
	if (credit_sees_all(grant, i, &figures))
		json_number(out, "idle_ns", figures.idle_ns);
	else
		json_string(out, "idle_ns", NULL);
	json_close(out, '}');
}

static void write_slice(struct grant *grant, uint32_t i, struct json *out)
{
	const struct aliquot_slice_limits *slice = &grant->limits->slices[i];
	uint64_t counted = grant->usage ? ledger_total(&grant->usage->slices[i]) : 0;
	json_open(out, NULL, '{');
	write_uuid(slice, out);
	if (grant->gpus[i])
		json_number(out, "index", grant->gpus[i]->index);
	else
		json_string(out, "index", NULL);
	json_number(out, "memory_bytes", atomic_load(&slice->limit_bytes));
	json_number(out, "compute_percent", atomic_load(&slice->compute_percent));
	json_string(out, "policy", enum_name(&enum_names_policy, atomic_load(&slice->policy)));
	json_string(out, "priority", enum_name(&enum_names_priority, atomic_load(&slice->priority)));
	json_number(out, "counted_bytes", counted);
	json_number(out, "driver_bytes", atomic_load(&slice->driver_bytes));
	json_number(out, "headroom_bytes", atomic_load(&slice->headroom_bytes));
	write_compute(grant, i, out);
	json_close(out, '}');
}

/* Why the driver cannot freeze it, as the process reports. */
static void write_ties(const struct process *process, struct json *out)
{
	static const struct {
		enum aliquot_tie tie;
		const char *name;
	} names[] = {{ALIQUOT_TIE_MANAGED, "managed"},
	             {ALIQUOT_TIE_IPC, "ipc"},
	             {ALIQUOT_TIE_SHARED, "shared"},
	             {ALIQUOT_TIE_HOST, "host"}};
	const struct aliquot_usage *usage = process->grant->usage;
	uint64_t ties = usage ? atomic_load(&usage->slices[0].entries[process->slot].ties) : 0;
	json_open(out, "ties", '[');
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (ties & names[i].tie)
			json_string(out, NULL, names[i].name);
	json_close(out, ']');
	json_number(out, "inside", ties / ALIQUOT_INSIDE);
}

static void write_process(struct process *process, struct json *out)
{
	struct grant *grant = process->grant;
	const struct aliquot_process *page = &grant->limits->processes[process->slot];
	json_open(out, NULL, '{');
	json_number(out, "pid", (uint32_t)process->pid);
	json_number(out, "inner_pid", (uint32_t)page->inner_pid);
	json_string(out, "name", process->name);
	json_string(out, "state", process->ending ? "ending" : "live");
	json_bool(out, "stopped", process->stopped);
	json_string(out, "ungated", *process->ungated ? process->ungated : NULL);
	write_ties(process, out);
	residence_write_process(process, out);
	spill_write_process(process, out);
	json_open(out, "slices", '[');
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		uint64_t counted = 0;
		if (grant->usage)
			counted = ledger_held(&grant->usage->slices[i], process->slot);
		json_open(out, NULL, '{');
		write_uuid(&grant->limits->slices[i], out);
		json_number(out, "counted_bytes", counted);
		json_number(out, "driver_bytes", atomic_load(&page->driver_bytes[i]));
		json_close(out, '}');
	}
	json_close(out, ']');
	json_close(out, '}');
}

static void write_processes(struct grant *grant, struct json *out)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		if (!process)
			continue;
		if (!process->ending) { /* it may have renamed itself */
			identity_name(process->pid, process->name);
			processes_look_at_state(process);
		}
		write_process(process, out);
	}
}

/* That it is alone is for all to see: nobody else gets a slice of its GPUs. */
static void write_neighbours(const struct grant *grant, bool visible, struct json *out)
{
	static const struct neighbours none;
	const struct neighbours *asked = grant->record ? &grant->record->neighbours : &none;
	json_string(out, "label", visible && *asked->label ? asked->label : NULL);
	json_open(out, "apart", '[');
	for (unsigned i = 0; visible && i < NEIGHBOURS_MOST && *asked->apart[i]; i++)
		json_string(out, NULL, asked->apart[i]);
	json_close(out, ']');
	json_bool(out, "alone", asked->alone);
}

/* `visible`: the caller may see more than whose it is and what it has and uses. */
static void write_grant(struct grant *grant, bool visible, struct json *out)
{
	const struct aliquot_limits *limits = grant->limits;
	char directory[GRANT_PATH_SIZE];
	grant_check(grant);
	grant_path(grant, directory);
	json_open(out, NULL, '{');
	json_string(out, "name", visible ? grant_plain_name(grant) : NULL);
	json_string(out, "directory", visible ? directory : NULL);
	json_string(out, "life", enum_name(&enum_names_life, grant_life(grant)));
	json_string(out, "state", enum_name(&enum_names_grant_state, grant_state(grant)));
	bool has_owner = grant_life(grant) == ALIQUOT_OWNED || grant->owner.fd >= 0;
	if (visible && has_owner)
		json_number(out, "owner_pid", limits ? (uint32_t)limits->owner_pid : 0);
	else
		json_string(out, "owner_pid", NULL);
	json_bool(out, "owner_alive", grant->owner.fd >= 0);
	json_number(out, "owner_uid", grant->owner_uid);
	json_number(out, "created", limits ? limits->created_ns / SECOND_NS : 0);
	const char *together = visible && grant->record ? grant->record->together : "";
	json_string(out, "together", *together ? together : NULL);
	write_neighbours(grant, visible, out);
	residence_write(grant, out);
	parking_write(grant, visible, out);
	spill_write(grant, out);
	mps_write(grant, out);
	rotation_write(grant, out);
	bool parked = grant_state(grant) == ALIQUOT_GRANT_PARKED;
	json_number(out, "staying_bytes", parked ? residence_staying_bytes(grant) : 0);
	json_string(out, "broken", *grant->broken ? grant->broken : NULL);
	if (visible)
		unjoined_write(grant, out);
	json_open(out, "slices", '[');
	for (uint32_t i = 0; i < grant->slice_count; i++)
		write_slice(grant, i, out);
	json_close(out, ']');
	json_open(out, "processes", '[');
	if (visible)
		write_processes(grant, out);
	json_close(out, ']');
	json_close(out, '}');
}

void status_write(struct arbiter *arbiter, uint32_t uid, struct json *out)
{
	grants_drop_removed(arbiter);
	credit_look(&arbiter->credit);
	json_open(out, NULL, '{');
	json_number(out, "version", ALIQUOT_VERSION);
	/* `pid` is the parent, the process to signal; `serving_pid` is this process. */
	json_number(out, "pid", (uint64_t)getppid());
	json_number(out, "serving_pid", (uint64_t)getpid());
	json_number(out, "guard_pid", (uint64_t)atomic_load(&arbiter->supervision->guard_pid));
	json_string(out, "state", arbiter->state->path);
	json_bool(out, "foreground", arbiter->foreground);
	json_number(out, "linger_seconds", arbiter->linger_ns / SECOND_NS);
	json_bool(out, "protects_descriptors", page_file_protects());
	json_string(out, "records", arbiter->state->records.path);
	json_string(out, "pages", arbiter->state->pages.path);
	json_number(out, "now_ns", loop_now());
	json_number(out, "credit_cpu_ns", credit_cpu_ns(&arbiter->credit));
	json_string(out, "unjoined", arbiter->ends_unjoined ? "end" : "report");
	/* As the kernel tells this process, which may be in another user namespace. */
	json_number(out, "asker_uid", uid);
	json_bool(out, "knows_neighbours", true);
	json_bool(out, "knows_swap", true);
	json_bool(out, "knows_parking", true);
	json_bool(out, "knows_spill", true);
	json_bool(out, "knows_swap_wait", true);
	json_bool(out, "knows_mps", true);
	json_bool(out, "knows_queue_overcommit", true);
	json_number(out, "overcommit_percent", arbiter->overcommit_percent);
	json_number(out, "host_memory_bytes", arbiter->movers.processes->most_bytes);
	json_string(out, "admission", arbiter->pool_admits ? "pool" : "users");
	json_number(out, "nvml_silent_ns", observer_silent_ns(&arbiter->observer));
	json_string(out, "driver_version", arbiter->nvml.driver_version);
	json_open(out, "gpus", '[');
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++)
		if (!arbiter->nvml.gpus[i].gone || grants_use_gpu(arbiter, &arbiter->nvml.gpus[i]))
			write_gpu(arbiter, &arbiter->nvml.gpus[i], out);
	json_close(out, ']');
	json_open(out, "grants", '[');
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		write_grant(grant, grant->owner_uid == uid || callers_is_privileged(uid), out);
	json_close(out, ']');
	json_close(out, '}');
}
