/* NVML: the machine's GPUs, their memory, and the processes on them.
 *
 * The library is loaded by path, not linked. The figures are NVML's own; measure.h interprets them.
 */
#ifndef ARBITER_NVML_H
#define ARBITER_NVML_H

#include "failure.h"
#include "aliquot/uuid.h"

#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>

/* NVML does not know how much the process uses. */
#define NVML_UNKNOWN_BYTES UINT64_MAX

struct gpu {
	unsigned index;
	nvmlDevice_t device;
	uint8_t uuid[16];
	char uuid_text[ALIQUOT_UUID_TEXT_SIZE];
	char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	char pci_bus_id[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
	uint64_t memory_bytes;  /* for programs: all, less what the driver reserves */
	uint64_t context_bytes; /* size of one context, the smallest seen; 0: not yet known */
};

struct gpu_client {
	int32_t pid;
	uint64_t bytes; /* or NVML_UNKNOWN_BYTES */
};

/* The processes on a GPU now, by ascending pid, each pid once. */
struct gpu_clients {
	const struct gpu_client *clients;
	size_t count;
};

typedef nvmlReturn_t nvml_list(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);

struct nvml {
	void *library;
	nvmlReturn_t (*shutdown)(void);
	const char *(*error_string)(nvmlReturn_t result);
	nvmlReturn_t (*memory)(nvmlDevice_t device, nvmlMemory_t *memory);
	nvmlReturn_t (*memory_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory); /* or NULL */
	nvml_list *compute_list;
	nvml_list *graphics_list; /* or NULL */
	struct gpu *gpus;
	unsigned gpu_count;
	nvmlProcessInfo_t *infos;
	unsigned infos_size;
	struct gpu_client *clients;
	size_t clients_size;
};

bool nvml_open(struct nvml *nvml, const char *path, struct failure *failure);
/* The library stays loaded: the process ends soon after. */
void nvml_close(struct nvml *nvml);

struct gpu *nvml_find(struct nvml *nvml, const uint8_t uuid[16]);

/* Bytes in use on the GPU, without the driver's own reserve. */
bool nvml_used_bytes(struct nvml *nvml, const struct gpu *gpu, uint64_t *used);

/* The answer is valid until the next call. False: NVML could not tell. */
bool nvml_clients(struct nvml *nvml, const struct gpu *gpu, struct gpu_clients *out);

/* The client of that pid, or NULL. */
const struct gpu_client *gpu_client_find(const struct gpu_clients *clients, int32_t pid);

#endif
