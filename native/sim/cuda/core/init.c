/* Start of the driver: cuInit, CUDA_VISIBLE_DEVICES, versions.
 *
 * The driver opens no file and starts no thread before cuInit, or before the program checkpoints another
 * process, which needs no cuInit. In a child forked after a successful cuInit every call returns
 * NOT_INITIALIZED, as with NVIDIA's driver.
 */
#include "cuda/core/sim.h"
#include "machine/driver.h"
#include "machine/mig.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread int per_thread;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

void sim_enter_per_thread(void)
{
	per_thread++;
}

void sim_leave_per_thread(void)
{
	per_thread--;
}

bool sim_per_thread(void)
{
	return per_thread > 0;
}

static void forked(void)
{
	if (sim.state == SIM_READY)
		sim.state = SIM_FORKED;
	pthread_mutex_init(&init_lock, NULL);
}

/* Whether programs can use the unit: not a GPU in MIG mode, nor a compute instance that is gone. */
static bool is_usable(uint32_t unit)
{
	const struct sim_map *map = sim.machine.map;
	return unit < map->count ? !map->mig[unit] : !mig_is_gone(map, unit);
}

/* The only usable unit whose UUID begins with the first `length` characters of `entry`; -1: none or
 * several. */
static int find_uuid(const char *entry, size_t length)
{
	int found = -1;
	for (uint32_t unit = 0; unit < machine_units(sim.machine.map); unit++) {
		char name[48];
		machine_uuid_text(&sim.machine, unit, name);
		if (is_usable(unit) && length <= strlen(name) && length > strlen("GPU-") &&
		    !strncmp(name, entry, length)) {
			if (found >= 0)
				return -1;
			found = (int)unit;
		}
	}
	return found;
}

/* Adds a unit to those that this process sees. CUDA sees one compute instance of a GPU instance, the first
 * that it is offered. It is an error to name a unit twice. */
static CUresult see(uint32_t unit)
{
	const struct sim_instance *instance = mig_instance(sim.machine.map, unit);
	for (int i = 0; i < sim.count; i++) {
		if (sim.devices[i].gpu == unit)
			return CUDA_ERROR_INVALID_DEVICE;
		if (instance && mig_instance(sim.machine.map, sim.devices[i].gpu) == instance)
			return CUDA_SUCCESS;
	}
	sim.devices[sim.count++].gpu = unit;
	return CUDA_SUCCESS;
}

/* What a process sees that names nothing: each GPU, or the instances of one that is in MIG mode. */
static void see_all(void)
{
	const struct sim_map *map = sim.machine.map;
	for (uint32_t gpu = 0; gpu < map->count; gpu++) {
		if (is_usable(gpu))
			see(gpu);
		for (uint32_t unit = map->count; unit < machine_units(map); unit++)
			if (is_usable(unit) && machine_gpu(map, unit) == gpu)
				see(unit);
	}
}

/* The unit that has an index in CUDA_VISIBLE_DEVICES; -1: none. */
static int find_index(long index)
{
	see_all();
	int found = index >= 0 && index < sim.count ? (int)sim.devices[index].gpu : -1;
	sim.count = 0;
	return found;
}

/* The unit of one entry of CUDA_VISIBLE_DEVICES; -1: the entry names none. */
static int find_unit(const char *entry, size_t length)
{
	while (length && isspace((unsigned char)*entry))
		entry++, length--;
	if (length >= 4 && (!strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4))) {
		while (length && isspace((unsigned char)entry[length - 1]))
			length--;
		return find_uuid(entry, length);
	}
	char number[32] = "", *end;
	memcpy(number, entry, length < sizeof(number) - 1 ? length : sizeof(number) - 1);
	long index = strtol(number, &end, 10);
	return end != number ? find_index(index) : -1;
}

/* Sets the devices this process sees: up to the first entry that names no unit. */
static CUresult choose_devices(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	uint32_t units[SIM_UNITS], count = 0;
	sim.count = 0;
	if (!visible) {
		see_all();
		return sim.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
	}
	while (count < SIM_UNITS) {
		size_t length = strcspn(visible, ",");
		int unit = find_unit(visible, length);
		if (unit < 0)
			break;
		units[count++] = (uint32_t)unit;
		if (!visible[length])
			break;
		visible += length + 1;
	}
	for (uint32_t i = 0; i < count; i++)
		SIM_TRY(see(units[i]));
	return sim.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* The switch for a feature that the driver can lack; NULL: there is no such feature. */
static bool *feature(const char *entry, size_t length)
{
	static const struct {
		const char *name;
		bool *out;
	} features[] = {{"stream-memory-operations", &sim.without_stream_operations},
	                {"prompt-values", &sim.without_prompt_values},
	                {"checkpoint", &sim.without_checkpoint},
	                {"process-memory", &sim.without_process_memory}};
	for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
		if (length == strlen(features[i].name) && !strncmp(entry, features[i].name, length))
			return features[i].out;
	return NULL;
}

/* Switches off the features in ALIQUOT_SIMULATE_WITHOUT, a list with commas. */
static CUresult leave_out(void)
{
	const char *entry = getenv("ALIQUOT_SIMULATE_WITHOUT");
	for (size_t length; entry && *entry; entry += length + (entry[length] == ',')) {
		length = strcspn(entry, ",");
		bool *out = feature(entry, length);
		if (!out) {
			fprintf(stderr,
			        "aliquot: simulated driver: no GPU: ALIQUOT_SIMULATE_WITHOUT: %.*s: %s\n",
			        (int)length, entry,
			        "only stream-memory-operations, prompt-values, checkpoint and process-memory "
			        "can be left out");
			return CUDA_ERROR_NO_DEVICE;
		}
		*out = true;
	}
	return CUDA_SUCCESS;
}

/* Precondition: init_lock is held. */
static CUresult find_machine(void)
{
	static bool opened;
	char why[256];
	if (opened)
		return CUDA_SUCCESS;
	SIM_TRY(leave_out());
	if (!machine_open(&sim.machine, why, sizeof(why))) {
		fprintf(stderr, "aliquot: simulated driver: no GPU: %s\n", why);
		return CUDA_ERROR_NO_DEVICE;
	}
	pthread_atfork(NULL, NULL, forked);
	opened = true;
	return CUDA_SUCCESS;
}

CUresult sim_find_machine(void)
{
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) == SIM_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_lock);
	CUresult result = find_machine();
	pthread_mutex_unlock(&init_lock);
	return result;
}

/* A process keeps the version of the library that it loaded. */
static CUresult check_module(void)
{
	static struct driver loaded;
	if (!*loaded.library)
		driver_read(&sim.machine, &loaded);
	if (!driver_is_loaded(&sim.machine))
		return CUDA_ERROR_NO_DEVICE;
	return driver_fits(&sim.machine, loaded.library) ? CUDA_SUCCESS
	                                                 : CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

static CUresult start(void)
{
	SIM_TRY(find_machine());
	SIM_TRY(check_module());
	SIM_TRY(choose_devices());
	if (!machine_enter(&sim.machine)) {
		fprintf(stderr,
		        "aliquot: simulated driver: no GPU: %u processes use this machine already\n",
		        SIM_MAX_PROCESSES);
		return CUDA_ERROR_NO_DEVICE;
	}
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) == SIM_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_lock);
	CUresult result = CUDA_SUCCESS;
	if (sim.state == SIM_COLD) {
		result = start();
		if (!result)
			__atomic_store_n(&sim.state, SIM_READY, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
