/* An NVML that reports what a text file says, so that a test decides when a dead process is no longer
 * listed. It reads the file at each call; replace the file by a rename.
 *
 *   gpu UUID TOTAL_BYTES RESERVED_BYTES
 *   process UUID PID BYTES|unknown         compute
 *   drawing UUID PID BYTES|unknown         graphics
 *   mps UUID PID BYTES|unknown             compute, of an MPS server's client
 *   no-mps                                 the list of those fails
 *   broken                                 every list fails
 *   lost UUID                              that GPU does not answer, until this line is gone and a new
 *                                          session has begun
 *   driver VERSION
 *   hung                                   every list waits until this line is gone
 *   more MIB                               the first process of one list has so many MiB more
 *   entries SIZE                           bytes of an entry in version 3 of the lists: 16, 24 or 32
 *
 * FAKE_NVML names the file. Each call of a list adds a byte to the file of that name with ".calls".
 * Built by itself: the few types are NVML's, version 2 of each.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	INSUFFICIENT_SIZE = 7,
	LOST = 15,
	UNKNOWN = 999
};

struct process_info {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
	unsigned long long protected_bytes; /* in entries of 32 bytes */
};

struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

struct pci_info {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

struct device {
	char uuid[64];
	unsigned long long total, reserved;
	int lost;
};

static struct device devices[16];
static unsigned device_count;

API const char *nvmlErrorString(int result)
{
	return result == SUCCESS ? "success" : "the fake says no";
}

static FILE *open_file(void)
{
	const char *path = getenv("FAKE_NVML");
	return path ? fopen(path, "r") : NULL;
}

API int nvmlInit_v2(void)
{
	char line[256];
	FILE *file = open_file();
	if (!file)
		return UNKNOWN;
	device_count = 0;
	while (device_count < 16 && fgets(line, sizeof(line), file)) {
		struct device *device = &devices[device_count];
		device->lost = 0;
		if (sscanf(line, "gpu %63s %llu %llu", device->uuid, &device->total, &device->reserved) ==
		    3)
			device_count++;
	}
	fclose(file);
	return SUCCESS;
}

API int nvmlShutdown(void)
{
	return SUCCESS;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = device_count;
	return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
	if (index >= device_count)
		return INVALID_ARGUMENT;
	*device = &devices[index];
	return SUCCESS;
}

/* The rest of the last line that begins with `word`; whether there is one. */
static int find_text(const char *word, char text[64])
{
	char line[256], found[64];
	int is_there = 0;
	FILE *file = open_file();
	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, word, strlen(word)) &&
		    sscanf(line + strlen(word), " %63s", found) == 1) {
			memcpy(text, found, sizeof(found));
			is_there = 1;
		}
	if (file)
		fclose(file);
	return is_there;
}

static int is_lost(struct device *device)
{
	char uuid[64];
	if (find_text("lost", uuid) && !strcmp(uuid, device->uuid))
		device->lost = 1;
	return device->lost;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
	for (unsigned i = 0; i < device_count; i++)
		if (!strcmp(devices[i].uuid, uuid)) {
			*device = &devices[i];
			return is_lost(&devices[i]) ? LOST : SUCCESS;
		}
	return INVALID_ARGUMENT;
}

API int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
	char version[64] = "1.0";
	find_text("driver", version);
	return snprintf(text, size, "%s", version) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetUUID(struct device *device, char *text, unsigned size)
{
	return snprintf(text, size, "%s", device->uuid) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetName(struct device *device, char *text, unsigned size)
{
	snprintf(text, size, "Fake \"GPU\" %d", (int)(device - devices));
	return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *pci)
{
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", (unsigned)(device - devices));
	return SUCCESS;
}

/* The figures of a GPU with the strength of a T4. */
API int nvmlDeviceGetNumGpuCores(struct device *device, unsigned *cores)
{
	(void)device;
	*cores = 2560;
	return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
	(void)device;
	*major = 7;
	*minor = 5;
	return SUCCESS;
}

API int nvmlDeviceGetMemoryBusWidth(struct device *device, unsigned *bits)
{
	(void)device;
	*bits = 256;
	return SUCCESS;
}

API int nvmlDeviceGetMaxClockInfo(struct device *device, int type, unsigned *mhz)
{
	(void)device;
	*mhz = type == 1 ? 1590 : 5001; /* of the SMs or of the memory */
	return SUCCESS;
}

static void count_call(void)
{
	char path[512];
	snprintf(path, sizeof(path), "%s.calls", getenv("FAKE_NVML"));
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	ssize_t ignored = write(fd, ".", 1);
	(void)ignored;
	close(fd);
}

/* The number after `word` at the beginning of a line, or 0; 1 if the line has no number. */
static unsigned setting(const char *word)
{
	char line[256];
	unsigned value = 0;
	FILE *file = open_file();
	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, word, strlen(word)) && sscanf(line + strlen(word), "%u", &value) != 1)
			value = 1;
	if (file)
		fclose(file);
	return value;
}

/* The processes of `device` in lines that begin with `kind`. */
static int list(const char *kind, struct device *device, unsigned *count, void *infos, size_t size)
{
	char line[256], word[16], uuid[64], bytes[32];
	unsigned pid, found = 0, room = *count;
	while (setting("hung"))
		usleep(5000);
	if (is_lost(device))
		return LOST;
	FILE *file = open_file();
	if (!file)
		return UNKNOWN;
	int result = SUCCESS;
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, "broken", 6))
			result = UNKNOWN;
		if (sscanf(line, "%15s %63s %u %31s", word, uuid, &pid, bytes) != 4 || strcmp(word, kind) ||
		    strcmp(uuid, device->uuid))
			continue;
		struct process_info info = {
			.pid = pid,
			.bytes = strcmp(bytes, "unknown") ? strtoull(bytes, NULL, 10) : ~0ull,
			.gpu_instance = ~0u,
			.compute_instance = ~0u,
		};
		if (found < room)
			memcpy((char *)infos + found * size, &info, size);
		found++;
	}
	fclose(file);
	*count = found;
	return result == SUCCESS && found > room ? INSUFFICIENT_SIZE : result;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, void *infos)
{
	static int told; /* what the line `more` says */
	unsigned size = setting("entries"), more = setting("more");
	struct process_info *first = infos;
	count_call();
	int result = list("process", device, count, infos, size ? size : 24);
	if (!more)
		told = 0;
	else if (!told && result == SUCCESS && *count > 0) {
		first->bytes += (unsigned long long)more << 20;
		told = 1;
	}
	return result;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, unsigned *count,
                                                 void *infos)
{
	return list("drawing", device, count, infos, 24);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                   void *infos)
{
	unsigned size = setting("entries");
	return setting("no-mps") ? UNKNOWN : list("mps", device, count, infos, size ? size : 24);
}

static unsigned long long used_bytes(struct device *device)
{
	struct process_info infos[256];
	unsigned count = 256;
	unsigned long long sum = 0;
	if (list("process", device, &count, infos, sizeof(*infos)) != SUCCESS)
		return 0;
	for (unsigned i = 0; i < count; i++)
		sum += infos[i].bytes == ~0ull ? 0 : infos[i].bytes;
	return sum;
}

API int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
	if (is_lost(device))
		return LOST;
	memory->total = device->total;
	memory->used = used_bytes(device) + device->reserved;
	memory->free = memory->total - memory->used;
	return SUCCESS;
}

API int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
	if (is_lost(device))
		return LOST;
	memory->total = device->total;
	memory->reserved = device->reserved;
	memory->used = used_bytes(device);
	memory->free = memory->total - memory->reserved - memory->used;
	return SUCCESS;
}
