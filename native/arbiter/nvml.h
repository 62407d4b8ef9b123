/* NVML: the machine's GPUs, their memory, and the processes on them.
 *
 * The library is loaded by path, not linked. The figures are NVML's own; measure.h interprets them.
 * After nvml_open only the observer's thread calls NVML (observer.h): a call may hang.
 *
 * A GPU in MIG mode is divided: programs cannot use it, and its instances are GPUs here, with an index of
 * their own (100 for each GPU before them, and the number that NVML gives the instance). They come and go
 * while the arbiter runs: nvml_scan asks which there are, and nvml_merge writes them down. An instance that
 * is gone keeps its entry as long as grants have it. GPU instances with several compute instances,
 * which share their memory, are left alone.
 *
 * A GPU that has fallen off the bus and was reset is found again only by a new session of NVML. So
 * while a GPU does not answer, nvml_snapshot begins a new session every 5 s. The library itself stays:
 * after an update of the driver the arbiter must be replaced, and says of which version it is.
 *
 * The drivers do not agree on the size of an entry in a list of processes: R535.43 to R535.86 write
 * 32 bytes where the header says 24, some vGPU drivers 16. So the buffer has room for the largest,
 * and how far a call has written tells the size.
 */
#ifndef ARBITER_NVML_H
#define ARBITER_NVML_H

#include "aliquot/uuid.h"
#include "failure.h"

#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>

/* NVML does not know how much the process uses. */
#define NVML_UNKNOWN_BYTES UINT64_MAX

#define NVML_MAX_GPUS 64u
#define NVML_INSTANCES 100u /* indexes of the instances of one GPU */

/* What the strength of a GPU follows from (src/aliquot/model/strength.py). */
struct gpu_figures {
	bool known; /* false: the driver does not report all of them */
	unsigned cores, clock_mhz;
	int major, minor; /* compute capability */
	unsigned bus_bits, memory_mhz;
};

struct gpu {
	unsigned index;
	bool divided;    /* in MIG mode */
	bool instance;   /* of a GPU */
	bool gone;       /* an instance that was destroyed */
	unsigned parent; /* the index of its GPU; its own if it is no instance */
	uint8_t uuid[16];
	char uuid_text[ALIQUOT_UUID_TEXT_SIZE];
	char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	char pci_bus_id[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
	uint64_t memory_bytes;  /* for programs: all, less what the driver reserves */
	uint64_t context_bytes; /* size of one context, the smallest measured; 0: not yet known */
	bool estimates;         /* there was a context, and NVML had no figure for it (measure.h) */
	struct gpu_figures figures;
	uint64_t compared_at; /* unjoined.h's: the snapshot that was last compared with the cgroups */
};

struct gpu_client {
	int32_t pid;
	bool computes;  /* it is not only a graphics process */
	uint64_t bytes; /* or NVML_UNKNOWN_BYTES */
};

/* What NVML said of one GPU at one moment. Nobody changes it. */
struct gpu_snapshot {
	char uuid[ALIQUOT_UUID_TEXT_SIZE];
	uint64_t asked_at;   /* just before NVML was asked: what happened earlier is in it */
	bool told;           /* false: NVML could not list the processes */
	bool knows_used;     /* false: the GPU does not answer */
	uint64_t used_bytes; /* on the GPU, without the driver's own reserve */
	size_t count;
	struct gpu_client clients[]; /* by ascending pid, each pid once */
};

typedef nvmlReturn_t nvml_list(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);

/* The thread that asks: NVML's handle of a GPU. */
struct nvml_handle {
	char uuid[ALIQUOT_UUID_TEXT_SIZE]; /* of which GPU; empty: of none yet */
	nvmlDevice_t device;               /* of this session; NULL: NVML does not find it */
	bool has_mps_clients;              /* when NVML last listed them */
};

/* What NVML needs to describe GPUs. */
struct nvml_calls {
	nvmlReturn_t (*count)(unsigned *count);
	nvmlReturn_t (*handle)(unsigned index, nvmlDevice_t *device);
	nvmlReturn_t (*uuid)(nvmlDevice_t device, char *text, unsigned size);
	nvmlReturn_t (*name)(nvmlDevice_t device, char *text, unsigned size);
	nvmlReturn_t (*pci)(nvmlDevice_t device, nvmlPciInfo_t *pci);
	/* NULL: the driver has it not */
	nvmlReturn_t (*cores)(nvmlDevice_t device, unsigned *cores);
	nvmlReturn_t (*capability)(nvmlDevice_t device, int *major, int *minor);
	nvmlReturn_t (*bus)(nvmlDevice_t device, unsigned *bits);
	nvmlReturn_t (*clock)(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz);
	nvmlReturn_t (*mode)(nvmlDevice_t device, unsigned *now, unsigned *next);
	nvmlReturn_t (*most_instances)(nvmlDevice_t device, unsigned *count);
	nvmlReturn_t (*instance)(nvmlDevice_t device, unsigned index, nvmlDevice_t *instance);
	nvmlReturn_t (*instance_id)(nvmlDevice_t instance, unsigned *id);
};

/* The GPUs and instances of one moment. */
struct nvml_scan {
	unsigned count;
	struct gpu gpus[NVML_MAX_GPUS];
};

struct nvml {
	void *library;
	struct nvml_calls calls;
	nvmlReturn_t (*init)(void);
	nvmlReturn_t (*shutdown)(void);
	nvmlReturn_t (*by_uuid)(const char *uuid, nvmlDevice_t *device);
	const char *(*error_string)(nvmlReturn_t result);
	nvmlReturn_t (*memory)(nvmlDevice_t device, nvmlMemory_t *memory);
	nvmlReturn_t (*memory_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory); /* or NULL */
	nvml_list *compute_list;
	nvml_list *mps_list;                                         /* or NULL */
	nvml_list *graphics_list;                                    /* or NULL */
	char driver_version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE]; /* when it was opened */
	struct gpu *gpus; /* room for NVML_MAX_GPUS; an entry is never removed */
	unsigned gpu_count;
	bool opened, full; /* what keeps lines of the log from being written again */
	struct nvml_handle handles[NVML_MAX_GPUS]; /* nvml_snapshot's */
	uint64_t session_began;                    /* nvml_snapshot's */
	/* nvml_snapshot's: room for the entries of one call, and the clients found so far. */
	unsigned char *entries;
	unsigned entries_room;
	struct gpu_client *clients;
	size_t clients_size;
};

bool nvml_open(struct nvml *nvml, const char *path, struct failure *failure);
/* The library stays loaded: the process ends soon after. */
void nvml_close(struct nvml *nvml);

struct gpu *nvml_find(struct nvml *nvml, const uint8_t uuid[16]);

/* The same for a new slice: NULL also if it is gone, or `instance` is wrong. */
struct gpu *nvml_find_present(struct nvml *nvml, const uint8_t uuid[16], bool instance);

/* Asks NVML now; one thread at a time. The caller frees the answer. NULL: out of memory. `uuid` is that of
 * the entry. */
struct gpu_snapshot *nvml_snapshot(struct nvml *nvml, unsigned gpu, const char *uuid);

/* Asks NVML which GPUs and instances there are; the same thread. The caller frees the answer. */
struct nvml_scan *nvml_scan(struct nvml *nvml);

/* Writes down what a scan found. A GPU that did not answer stays as it was. The entry of an instance that
 * is gone is given to another one if `is_used` says that nobody has it. Returns the entries that are new,
 * one bit each. */
uint64_t nvml_merge(struct nvml *nvml, const struct nvml_scan *scan,
                    bool (*is_used)(void *context, const struct gpu *gpu), void *context);

/* What one context is expected to take of a slice of that size; 0: not yet known. */
uint64_t gpu_context_bytes(const struct gpu *gpu, uint64_t limit_bytes);

/* The client of that pid, or NULL. */
const struct gpu_client *gpu_client_find(const struct gpu_snapshot *snapshot, int32_t pid);

#endif
