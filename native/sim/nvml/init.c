/* Start and end of NVML, versions, and device handles by index, UUID, PCI address and serial. */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool open_machine(void)
{
	static bool opened;
	char why[256];
	if (opened)
		return true;
	if (!machine_open(&nvml.machine, why, sizeof(why))) {
		fprintf(stderr, "aliquot: simulated NVML: no GPU: %s\n", why);
		return false;
	}
	struct driver driver;
	driver_read(&nvml.machine, &driver);
	memcpy(nvml.version, driver.library, sizeof(nvml.version));
	for (uint32_t i = 0; i < SIM_UNITS; i++)
		nvml.devices[i].index = i;
	opened = true;
	return true;
}

/* Precondition: the lock is held. */
static nvmlReturn_t begin_session(void)
{
	if (!open_machine() || !driver_is_loaded(&nvml.machine))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (!driver_fits(&nvml.machine, nvml.version))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	if (!nvml.users++)
		nvml.since = health_end(&nvml.machine);
	return NVML_SUCCESS;
}

static nvmlReturn_t start(void)
{
	pthread_mutex_lock(&lock);
	nvmlReturn_t result = begin_session();
	pthread_mutex_unlock(&lock);
	return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return start();
}

nvmlReturn_t nvmlInit(void)
{
	return start();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return start();
}

nvmlReturn_t nvmlShutdown(void)
{
	pthread_mutex_lock(&lock);
	bool ready = nvml.users > 0;
	nvml.users -= ready;
	pthread_mutex_unlock(&lock);
	return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	NVML_READY();
	return nvml_copy_text(version, length, nvml.version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	NVML_READY();
	char own[SIM_VERSION_SIZE + 8];
	snprintf(own, sizeof(own), "13.%s", nvml.version);
	return nvml_copy_text(version, length, own);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	NVML_READY();
	NVML_NEED(version);
	*version = 13000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
	NVML_READY();
	NVML_NEED(info);
	char own[SIM_VERSION_SIZE + 8];
	snprintf(own, sizeof(own), "r%.*s_00", (int)strcspn(nvml.version, "."), nvml.version);
	return nvml_copy_text(info->branch,
	                      length < sizeof(info->branch) ? length : sizeof(info->branch), own);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	NVML_READY();
	NVML_NEED(name && length);
	char path[40], text[1024] = "";
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return NVML_ERROR_NOT_FOUND;
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	NVML_READY();
	NVML_NEED(count);
	*count = nvml.machine.shape.count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	NVML_READY();
	NVML_NEED(device && index < nvml.machine.shape.count);
	return nvml_give(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	NVML_READY();
	NVML_NEED(uuid && device);
	for (uint32_t i = 0; i < machine_units(nvml.machine.map); i++) {
		char own[48];
		machine_uuid_text(&nvml.machine, i, own);
		if (!strcmp(own, uuid) && !mig_is_gone(nvml.machine.map, i))
			return nvml_give(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	NVML_READY();
	unsigned domain, bus, slot;
	NVML_NEED(id && device);
	NVML_NEED(sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3);
	for (uint32_t i = 0; i < nvml.machine.shape.count; i++)
		if (!domain && !slot && nvml.machine.shape.buses[i] == bus)
			return nvml_give(i, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	NVML_READY();
	NVML_NEED(serial && device);
	for (uint32_t i = 0; i < nvml.machine.shape.count; i++) {
		char own[32] = "";
		nvmlDeviceGetSerial((nvmlDevice_t)&nvml.devices[i], own, sizeof(own));
		if (!strcmp(own, serial))
			return nvml_give(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}
