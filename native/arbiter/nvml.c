#include "nvml.h"

#include "aliquot/ledger.h"
#include "log.h"
#include "loop.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_NS (5 * SECOND_NS)

struct entry {
	const char *name;
	void *address; /* of the pointer to fill */
};

static bool look_up(struct nvml *nvml, const struct entry *entries, size_t count, const char *path,
                    struct failure *failure)
{
	for (size_t i = 0; i < count; i++) {
		void *symbol = dlsym(nvml->library, entries[i].name);
		if (!symbol)
			return failure_set(failure, "nvml", "%s has no %s: the driver is too old", path,
			                   entries[i].name);
		memcpy(entries[i].address, &symbol, sizeof(symbol));
	}
	return true;
}

/* _v2 and _v3 take the same structure; _v3 counts MIG instances right. */
static nvml_list *look_up_list(struct nvml *nvml, const char *newer, const char *older)
{
	void *symbol = dlsym(nvml->library, newer);
	if (!symbol)
		symbol = dlsym(nvml->library, older);
	nvml_list *list;
	memcpy(&list, &symbol, sizeof(list));
	return list;
}

static nvmlReturn_t read_memory(struct nvml *nvml, nvmlDevice_t device, uint64_t *total,
                                uint64_t *used)
{
	if (nvml->memory_v2) {
		nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
		if (nvml->memory_v2(device, &memory) == NVML_SUCCESS && memory.reserved <= memory.total) {
			*total = memory.total - memory.reserved;
			*used = memory.used;
			return NVML_SUCCESS;
		}
	}
	nvmlMemory_t memory;
	nvmlReturn_t result = nvml->memory(device, &memory);
	if (result == NVML_SUCCESS) {
		*total = memory.total;
		*used = memory.used;
	}
	return result;
}

static void look_up_optional(struct nvml *nvml, struct nvml_calls *calls)
{
	const struct entry optional[] = {
		{"nvmlDeviceGetNumGpuCores", &calls->cores},
		{"nvmlDeviceGetCudaComputeCapability", &calls->capability},
		{"nvmlDeviceGetMemoryBusWidth", &calls->bus},
		{"nvmlDeviceGetMaxClockInfo", &calls->clock},
		{"nvmlDeviceGetMigMode", &calls->mode},
		{"nvmlDeviceGetMaxMigDeviceCount", &calls->most_instances},
		{"nvmlDeviceGetMigDeviceHandleByIndex", &calls->instance},
		{"nvmlDeviceGetGpuInstanceId", &calls->instance_id},
	};
	for (size_t i = 0; i < sizeof(optional) / sizeof(*optional); i++) {
		void *symbol = dlsym(nvml->library, optional[i].name);
		memcpy(optional[i].address, &symbol, sizeof(symbol));
	}
}

static void read_figures(const struct nvml_calls *calls, nvmlDevice_t device,
                         struct gpu_figures *out)
{
	if (!calls->cores || !calls->capability || !calls->bus || !calls->clock)
		return;
	out->known = calls->cores(device, &out->cores) == NVML_SUCCESS &&
	             calls->capability(device, &out->major, &out->minor) == NVML_SUCCESS &&
	             calls->bus(device, &out->bus_bits) == NVML_SUCCESS &&
	             calls->clock(device, NVML_CLOCK_SM, &out->clock_mhz) == NVML_SUCCESS &&
	             calls->clock(device, NVML_CLOCK_MEM, &out->memory_mhz) == NVML_SUCCESS;
}

static void say_ignored(const struct nvml *nvml, unsigned index, nvmlReturn_t result)
{
	if (!nvml->opened)
		log_event("GPU %u is ignored: NVML says: %s", index, nvml->error_string(result));
}

/* Describes a GPU or an instance; NVML tells the PCI address of `parent` alone. */
static bool describe(struct nvml *nvml, nvmlDevice_t device, nvmlDevice_t parent, unsigned index,
                     struct gpu *gpu)
{
	const struct nvml_calls *calls = &nvml->calls;
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
	nvmlPciInfo_t pci = {0};
	uint64_t used;
	nvmlReturn_t result = calls->uuid(device, uuid, sizeof(uuid));
	if (result == NVML_SUCCESS)
		result = calls->name(device, gpu->name, sizeof(gpu->name));
	if (result == NVML_SUCCESS)
		result = calls->pci(parent, &pci);
	if (result == NVML_SUCCESS)
		result = read_memory(nvml, device, &gpu->memory_bytes, &used);
	if (result != NVML_SUCCESS) {
		say_ignored(nvml, index, result);
		return false;
	}
	if (!aliquot_uuid_parse(uuid, strnlen(uuid, sizeof(uuid)), gpu->uuid)) {
		if (!nvml->opened)
			log_event("GPU %u is ignored: \"%.80s\" is not the UUID of a GPU", index, uuid);
		return false;
	}
	gpu->instance = aliquot_uuid_is_instance(uuid);
	aliquot_uuid_write(gpu->uuid, gpu->instance, gpu->uuid_text);
	memcpy(gpu->pci_bus_id, pci.busId, sizeof(gpu->pci_bus_id));
	gpu->pci_bus_id[sizeof(gpu->pci_bus_id) - 1] = 0;
	gpu->name[sizeof(gpu->name) - 1] = 0;
	gpu->index = gpu->parent = index;
	read_figures(calls, device, &gpu->figures);
	return true;
}

static bool is_divided(const struct nvml_calls *calls, nvmlDevice_t device)
{
	unsigned now = NVML_DEVICE_MIG_DISABLE, next;
	return calls->mode && calls->most_instances && calls->instance && calls->instance_id &&
	       calls->mode(device, &now, &next) == NVML_SUCCESS && now == NVML_DEVICE_MIG_ENABLE;
}

/* Whether another compute instance is in the same GPU instance. */
static bool is_shared(const unsigned *ids, unsigned count, unsigned which)
{
	for (unsigned i = 0; i < count; i++)
		if (i != which && ids[i] == ids[which])
			return true;
	return false;
}

#define MOST_INSTANCES 64u

static void scan_instances(struct nvml *nvml, nvmlDevice_t parent, unsigned index,
                           struct nvml_scan *scan)
{
	nvmlDevice_t found[MOST_INSTANCES];
	unsigned ids[MOST_INSTANCES], most = 0, count = 0;
	nvml->calls.most_instances(parent, &most);
	for (unsigned i = 0; i < most && count < MOST_INSTANCES; i++)
		count += nvml->calls.instance(parent, i, &found[count]) == NVML_SUCCESS &&
		         nvml->calls.instance_id(found[count], &ids[count]) == NVML_SUCCESS;
	for (unsigned i = 0; i < count && scan->count < NVML_MAX_GPUS; i++) {
		struct gpu gpu = {0};
		if (is_shared(ids, count, i) ||
		    !describe(nvml, found[i], parent, NVML_INSTANCES * (index + 1) + ids[i], &gpu))
			continue;
		gpu.parent = index;
		scan->gpus[scan->count++] = gpu;
	}
}

struct nvml_scan *nvml_scan(struct nvml *nvml)
{
	unsigned count = 0;
	struct nvml_scan *scan = calloc(1, sizeof(*scan));
	if (!scan || nvml->calls.count(&count) != NVML_SUCCESS)
		return scan;
	for (unsigned i = 0; i < count && scan->count < NVML_MAX_GPUS; i++) {
		nvmlDevice_t device;
		struct gpu gpu = {0};
		nvmlReturn_t result = nvml->calls.handle(i, &device);
		if (result != NVML_SUCCESS)
			say_ignored(nvml, i, result);
		if (result != NVML_SUCCESS || !describe(nvml, device, device, i, &gpu))
			continue;
		gpu.divided = is_divided(&nvml->calls, device);
		scan->gpus[scan->count++] = gpu;
		if (gpu.divided)
			scan_instances(nvml, device, i, scan);
	}
	return scan;
}

static const struct gpu *find_in(const struct nvml_scan *scan, const struct gpu *gpu)
{
	for (unsigned i = 0; i < scan->count; i++)
		if (!memcmp(scan->gpus[i].uuid, gpu->uuid, sizeof(gpu->uuid)))
			return &scan->gpus[i];
	return NULL;
}

/* Whether the scan says that an instance does not exist: its GPU answered, and did not have it. */
static bool says_gone(const struct nvml_scan *scan, const struct gpu *gpu)
{
	for (unsigned i = 0; i < scan->count; i++)
		if (!scan->gpus[i].instance && scan->gpus[i].index == gpu->parent)
			return !find_in(scan, gpu);
	return false;
}

static struct gpu *place_for(struct nvml *nvml, bool (*is_used)(void *context, const struct gpu *),
                             void *context)
{
	for (unsigned i = 0; i < nvml->gpu_count; i++)
		if (nvml->gpus[i].gone && !is_used(context, &nvml->gpus[i]))
			return &nvml->gpus[i];
	return nvml->gpu_count < NVML_MAX_GPUS ? &nvml->gpus[nvml->gpu_count++] : NULL;
}

uint64_t nvml_merge(struct nvml *nvml, const struct nvml_scan *scan,
                    bool (*is_used)(void *context, const struct gpu *gpu), void *context)
{
	uint64_t fresh = 0;
	for (unsigned i = 0; i < nvml->gpu_count; i++)
		if (nvml->gpus[i].instance)
			nvml->gpus[i].gone = nvml->gpus[i].gone || says_gone(scan, &nvml->gpus[i]);
	for (unsigned i = 0; i < scan->count; i++) {
		struct gpu *gpu = nvml_find(nvml, scan->gpus[i].uuid);
		if (gpu) {
			gpu->divided = scan->gpus[i].divided;
			gpu->gone = false;
			continue;
		}
		gpu = place_for(nvml, is_used, context);
		if (!gpu) {
			if (!nvml->full)
				log_event("%s is ignored: this arbiter knows %u GPUs and instances already",
				          scan->gpus[i].uuid_text, NVML_MAX_GPUS);
			nvml->full = true;
			continue;
		}
		*gpu = scan->gpus[i];
		fresh |= UINT64_C(1) << (gpu - nvml->gpus);
	}
	return fresh;
}

static bool is_unused(void *context, const struct gpu *gpu)
{
	(void)context;
	(void)gpu;
	return false;
}

static bool enumerate_gpus(struct nvml *nvml, struct failure *failure)
{
	unsigned count = 0;
	nvmlReturn_t result = nvml->calls.count(&count);
	if (result != NVML_SUCCESS)
		return failure_set(failure, "nvml", "NVML cannot count the GPUs: %s",
		                   nvml->error_string(result));
	nvml->gpus = calloc(NVML_MAX_GPUS, sizeof(*nvml->gpus));
	struct nvml_scan *scan = nvml_scan(nvml);
	if (!nvml->gpus || !scan) {
		free(scan);
		return failure_set(failure, "memory", "out of memory");
	}
	nvml_merge(nvml, scan, is_unused, NULL);
	free(scan);
	nvml->opened = true;
	return true;
}

bool nvml_open(struct nvml *nvml, const char *path, struct failure *failure)
{
	memset(nvml, 0, sizeof(*nvml));
	nvml->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library)
		return failure_set(failure, "nvml", "NVML cannot be loaded: %s", dlerror());
	struct nvml_calls *calls = &nvml->calls;
	nvmlReturn_t (*version)(char *text, unsigned size);
	const struct entry needed[] = {
		{"nvmlInit_v2", &nvml->init},
		{"nvmlShutdown", &nvml->shutdown},
		{"nvmlErrorString", &nvml->error_string},
		{"nvmlSystemGetDriverVersion", &version},
		{"nvmlDeviceGetCount_v2", &calls->count},
		{"nvmlDeviceGetHandleByIndex_v2", &calls->handle},
		{"nvmlDeviceGetHandleByUUID", &nvml->by_uuid},
		{"nvmlDeviceGetUUID", &calls->uuid},
		{"nvmlDeviceGetName", &calls->name},
		{"nvmlDeviceGetPciInfo_v3", &calls->pci},
		{"nvmlDeviceGetMemoryInfo", &nvml->memory},
	};
	if (!look_up(nvml, needed, sizeof(needed) / sizeof(*needed), path, failure))
		return false;
	look_up_optional(nvml, calls);
	void *memory_v2 = dlsym(nvml->library, "nvmlDeviceGetMemoryInfo_v2");
	memcpy(&nvml->memory_v2, &memory_v2, sizeof(memory_v2));
	nvml->compute_list = look_up_list(nvml, "nvmlDeviceGetComputeRunningProcesses_v3",
	                                  "nvmlDeviceGetComputeRunningProcesses_v2");
	nvml->mps_list = look_up_list(nvml, "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	                              "nvmlDeviceGetMPSComputeRunningProcesses_v2");
	nvml->graphics_list = look_up_list(nvml, "nvmlDeviceGetGraphicsRunningProcesses_v3",
	                                   "nvmlDeviceGetGraphicsRunningProcesses_v2");
	if (!nvml->compute_list)
		return failure_set(failure, "nvml", "%s cannot list processes: the driver is too old",
		                   path);
	nvmlReturn_t result = nvml->init();
	if (result != NVML_SUCCESS)
		return failure_set(failure, "nvml", "NVML (%s) does not start: %s", path,
		                   nvml->error_string(result));
	nvml->session_began = loop_now();
	if (version(nvml->driver_version, sizeof(nvml->driver_version)) != NVML_SUCCESS)
		*nvml->driver_version = 0;
	return enumerate_gpus(nvml, failure);
}

void nvml_close(struct nvml *nvml)
{
	if (nvml->gpus)
		nvml->shutdown();
	free(nvml->gpus);
	free(nvml->entries);
	free(nvml->clients);
	memset(nvml, 0, sizeof(*nvml));
}

struct gpu *nvml_find(struct nvml *nvml, const uint8_t uuid[16])
{
	for (unsigned i = 0; i < nvml->gpu_count; i++)
		if (!memcmp(nvml->gpus[i].uuid, uuid, 16))
			return &nvml->gpus[i];
	return NULL;
}

struct gpu *nvml_find_present(struct nvml *nvml, const uint8_t uuid[16], bool instance)
{
	struct gpu *gpu = nvml_find(nvml, uuid);
	return gpu && !gpu->gone && gpu->instance == instance ? gpu : NULL;
}

/* Entries of 16, 24 and 32 bytes begin alike, with the pid and the bytes. */
#define LARGEST_ENTRY 32u
#define UNTOUCHED 0xa5

static bool grow_entries(struct nvml *nvml, unsigned room)
{
	if (room <= nvml->entries_room)
		return true;
	unsigned char *entries = realloc(nvml->entries, (size_t)room * LARGEST_ENTRY);
	if (!entries)
		return false;
	nvml->entries = entries;
	nvml->entries_room = room;
	return true;
}

/* The size of the entries that a call has written: no field of an entry ends with the byte that the
 * buffer was filled with. */
static size_t entry_size(const struct nvml *nvml, unsigned count)
{
	size_t written = (size_t)nvml->entries_room * LARGEST_ENTRY;
	while (written && nvml->entries[written - 1] == UNTOUCHED)
		written--;
	for (size_t size = 16; size <= LARGEST_ENTRY; size += 8)
		if (written == count * size || written == nvml->entries_room * size)
			return size;
	return sizeof(nvmlProcessInfo_t);
}

/* Fills nvml->entries with one list; *size: the bytes of an entry. */
static bool read_list(struct nvml *nvml, nvml_list *list, nvmlDevice_t device, unsigned *count,
                      size_t *size)
{
	nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = 0;
	/* The list may grow between two calls, but not without limit. */
	for (int attempt = 0; attempt < 8 && result == NVML_ERROR_INSUFFICIENT_SIZE; attempt++) {
		if (!grow_entries(nvml, *count < 48 ? 64 : *count + 16))
			return false;
		*count = nvml->entries_room;
		memset(nvml->entries, UNTOUCHED, (size_t)nvml->entries_room * LARGEST_ENTRY);
		result = list(device, count, (nvmlProcessInfo_t *)(void *)nvml->entries);
	}
	if (result == NVML_ERROR_NOT_SUPPORTED)
		*count = 0;
	else if (result != NVML_SUCCESS || *count > nvml->entries_room)
		return false;
	*size = entry_size(nvml, *count);
	return true;
}

/* Appends the processes of one list to nvml->clients. */
static bool append_clients(struct nvml *nvml, nvml_list *list, bool computes, nvmlDevice_t device,
                           size_t *used)
{
	unsigned count;
	size_t size;
	if (!read_list(nvml, list, device, &count, &size))
		return false;
	if (*used + count > nvml->clients_size) {
		size_t room = *used + count + 64;
		struct gpu_client *clients = realloc(nvml->clients, room * sizeof(*clients));
		if (!clients)
			return false;
		nvml->clients = clients;
		nvml->clients_size = room;
	}
	for (unsigned i = 0; i < count; i++) {
		nvmlProcessInfo_v1_t info;
		memcpy(&info, nvml->entries + i * size, sizeof(info));
		nvml->clients[(*used)++] = (struct gpu_client){.pid = (int32_t)info.pid,
		                                               .computes = computes,
		                                               .bytes = info.usedGpuMemory};
	}
	return true;
}

static int by_pid(const void *left, const void *right)
{
	int32_t a = ((const struct gpu_client *)left)->pid, b = ((const struct gpu_client *)right)->pid;
	return (a > b) - (a < b);
}

/* A process that computes and draws is in both lists, each time with all its bytes. So may be a client
 * of an MPS server. */
static size_t merge_clients(struct gpu_client *clients, size_t count)
{
	size_t kept = 0;
	for (size_t i = 0; i < count; i++) {
		if (!kept || clients[kept - 1].pid != clients[i].pid) {
			clients[kept++] = clients[i];
			continue;
		}
		uint64_t *bytes = &clients[kept - 1].bytes;
		clients[kept - 1].computes |= clients[i].computes;
		if (*bytes == NVML_UNKNOWN_BYTES ||
		    (clients[i].bytes != NVML_UNKNOWN_BYTES && clients[i].bytes > *bytes))
			*bytes = clients[i].bytes;
	}
	return kept;
}

static void begin_session(struct nvml *nvml)
{
	nvml->session_began = loop_now();
	nvml->shutdown();
	bool usable = nvml->init() == NVML_SUCCESS;
	for (unsigned i = 0; i < NVML_MAX_GPUS; i++) {
		struct nvml_handle *handle = &nvml->handles[i];
		if (*handle->uuid &&
		    (!usable || nvml->by_uuid(handle->uuid, &handle->device) != NVML_SUCCESS))
			handle->device = NULL;
	}
}

/* Not every driver lists clients of MPS servers. But where there were some a list that fails says nothing: their
 * memory would be taken for free. */
static bool append_mps_clients(struct nvml *nvml, struct nvml_handle *handle, size_t *used)
{
	size_t before = *used;
	if (nvml->mps_list && !append_clients(nvml, nvml->mps_list, true, handle->device, used))
		return !handle->has_mps_clients;
	handle->has_mps_clients = *used > before;
	return true;
}

/* The GPU as NVML has it. One of an instance is asked for each time: it may have been made anew. */
static struct nvml_handle *handle_of(struct nvml *nvml, unsigned gpu, const char *uuid)
{
	struct nvml_handle *handle = &nvml->handles[gpu];
	if (strcmp(handle->uuid, uuid))
		handle->has_mps_clients = false;
	if (strcmp(handle->uuid, uuid) || aliquot_uuid_is_instance(uuid)) {
		memcpy(handle->uuid, uuid, sizeof(handle->uuid));
		if (nvml->by_uuid(uuid, &handle->device) != NVML_SUCCESS)
			handle->device = NULL;
	}
	return handle;
}

struct gpu_snapshot *nvml_snapshot(struct nvml *nvml, unsigned gpu, const char *uuid)
{
	struct gpu_snapshot read = {.asked_at = loop_now()};
	struct nvml_handle *handle = handle_of(nvml, gpu, uuid);
	nvmlDevice_t device = handle->device;
	uint64_t total;
	size_t used = 0;
	memcpy(read.uuid, uuid, sizeof(read.uuid));
	read.told = device && append_clients(nvml, nvml->compute_list, true, device, &used) &&
	            append_mps_clients(nvml, handle, &used);
	/* Graphics processes are optional: not every driver lists them. */
	if (read.told && nvml->graphics_list)
		append_clients(nvml, nvml->graphics_list, false, device, &used);
	if (used)
		qsort(nvml->clients, used, sizeof(*nvml->clients), by_pid);
	read.count = read.told ? merge_clients(nvml->clients, used) : 0;
	read.knows_used = device && read_memory(nvml, device, &total, &read.used_bytes) == NVML_SUCCESS;
	if (!read.knows_used && !aliquot_uuid_is_instance(uuid) &&
	    loop_now() > nvml->session_began + SESSION_NS)
		begin_session(nvml); /* for the next snapshot */
	struct gpu_snapshot *snapshot = malloc(sizeof(read) + read.count * sizeof(*read.clients));
	if (!snapshot)
		return NULL;
	*snapshot = read;
	if (read.count)
		memcpy(snapshot->clients, nvml->clients, read.count * sizeof(*read.clients));
	return snapshot;
}

uint64_t gpu_context_bytes(const struct gpu *gpu, uint64_t limit_bytes)
{
	if (gpu->context_bytes || !gpu->estimates)
		return gpu->context_bytes;
	return ledger_context_estimate(limit_bytes);
}

const struct gpu_client *gpu_client_find(const struct gpu_snapshot *snapshot, int32_t pid)
{
	struct gpu_client key = {.pid = pid};
	if (!snapshot->count)
		return NULL;
	return bsearch(&key, snapshot->clients, snapshot->count, sizeof(key), by_pid);
}
