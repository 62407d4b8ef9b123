#define _GNU_SOURCE
#include "view.h"

#include "aliquot/ledger.h"
#include "aliquot/uuid.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct view none;
static const struct view *_Atomic opened; /* NULL: not tried; &none: failed */

static const void *map(const char *directory, const char *name, size_t size)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	void *memory = MAP_FAILED;
	if (lseek(fd, 0, SEEK_END) >= (off_t)size)
		memory = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

static bool open_pages(struct view *view)
{
	char directory[PATH_MAX];
	uint64_t created;
	if (!forward_grant(directory, &created)) {
		forward_say("this program uses Aliquot's NVML but has no grant: start it with aliquot run");
		return false;
	}
	view->limits = map(directory, "limits", sizeof(*view->limits));
	view->usage = map(directory, "usage", sizeof(*view->usage));
	const char *wrong = NULL;
	if (!view->limits || !view->usage)
		wrong = strerror(errno);
	if (!wrong)
		wrong = aliquot_limits_check(view->limits, sizeof(*view->limits));
	if (!wrong)
		wrong = aliquot_usage_check(view->usage, sizeof(*view->usage));
	if (!wrong && created && view->limits->created_ns != created)
		wrong = "it has ended, and a later grant has its name";
	if (wrong)
		forward_say("the grant %s cannot be read: %s; see: aliquot doctor", directory, wrong);
	return !wrong;
}

/* Without a lock, which a forked child could find taken: threads that come first together each open
 * the pages, and all use those of one. */
const struct view *view_open(void)
{
	const struct view *found = atomic_load_explicit(&opened, memory_order_acquire);
	if (!found) {
		struct view *made = calloc(1, sizeof(*made));
		const struct view *mine = made && open_pages(made) ? made : &none;
		if (atomic_compare_exchange_strong(&opened, &found, mine))
			found = mine;
	}
	return found == &none ? NULL : found;
}

nvmlReturn_t view_device(uint32_t slice, nvmlDevice_t *out)
{
	char uuid[ALIQUOT_UUID_TEXT_SIZE];
	aliquot_uuid_write(opened->limits->slices[slice].uuid, opened->limits->slices[slice].instance,
	                   uuid);
	return REAL(nvmlDeviceGetHandleByUUID)(uuid, out);
}

uint32_t view_slice(nvmlDevice_t device)
{
	char theirs[NVML_DEVICE_UUID_V2_BUFFER_SIZE], ours[ALIQUOT_UUID_TEXT_SIZE];
	if (!view_open() || REAL(nvmlDeviceGetUUID)(device, theirs, sizeof(theirs)) != NVML_SUCCESS)
		return VIEW_NO_SLICE;
	for (uint32_t i = 0; i < opened->limits->slice_count; i++) {
		aliquot_uuid_write(opened->limits->slices[i].uuid, opened->limits->slices[i].instance,
		                   ours);
		if (strcmp(theirs, ours) == 0)
			return i;
	}
	return VIEW_NO_SLICE;
}

uint64_t view_used(uint32_t slice)
{
	return ledger_total(&opened->usage->slices[slice]) + opened->limits->slices[slice].driver_bytes;
}

uint64_t view_process_used(uint32_t slice, uint32_t slot)
{
	const struct aliquot_process *process = &opened->limits->processes[slot];
	if (process->state != ALIQUOT_LIVE)
		return 0;
	return ledger_held(&opened->usage->slices[slice], slot) + process->driver_bytes[slice];
}

uint32_t view_slot_of(int32_t pid)
{
	for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++)
		if (opened->limits->processes[slot].state == ALIQUOT_LIVE &&
		    opened->limits->processes[slot].pid == pid)
			return slot;
	return ALIQUOT_MAX_PROCESSES;
}
