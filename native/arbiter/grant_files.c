#include "grant_files.h"

#include "aliquot/ledger.h"
#include "page_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORD "record"

/* A peer of another user must be able to connect, to be refused with a reason. */
static mode_t socket_mode(void)
{
	return geteuid() == 0 ? 0666 : 0600;
}

static void fill_limits(struct grant *grant, const struct control_request *request,
                        const struct identity *owner)
{
	struct aliquot_limits *limits = grant->limits;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	limits->version = ALIQUOT_VERSION;
	limits->size = sizeof(*limits);
	memcpy(limits->name, request->name, sizeof(limits->name));
	grant->record->parked.after_ms = request->park_after_ms;
	grant->record->parked.if_wanted = request->park_if_wanted;
	memcpy(grant->record->together, request->together, sizeof(grant->record->together));
	grant->record->neighbours = request->neighbours;
	grant->record->mps = request->mps;
	grant->record->overcommit_percent = request->overcommit_percent;
	limits->slice_count = grant->slice_count;
	limits->owner_uid = owner->uid;
	limits->owner_pid = owner->pid;
	limits->owner_start_time = owner->start_time;
	atomic_store(&limits->life, request->kept ? ALIQUOT_KEPT : ALIQUOT_OWNED);
	limits->created_ns = (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		const struct control_slice *asked = &request->slices[i];
		struct aliquot_slice_limits *slice = &limits->slices[i];
		const struct gpu *gpu = grant->gpus[i];
		memcpy(slice->uuid, gpu->uuid, sizeof(slice->uuid));
		memcpy(slice->pci_bus_id, gpu->pci_bus_id, sizeof(slice->pci_bus_id));
		slice->instance = gpu->instance;
		slice->gpu_bytes = gpu->memory_bytes;
		atomic_store(&slice->limit_bytes, asked->memory_bytes);
		atomic_store(&slice->headroom_bytes, ledger_headroom(asked->memory_bytes));
		atomic_store(&slice->context_bytes, gpu_context_bytes(gpu, asked->memory_bytes));
		atomic_store(&slice->compute_percent, asked->compute_percent);
		atomic_store(&slice->policy, (uint32_t)asked->policy);
		atomic_store(&slice->priority, (uint32_t)asked->priority);
	}
	atomic_store(&limits->slices[0].swap, request->swap);
	if (request->spill_bytes)
		atomic_store(&limits->slices[ALIQUOT_HOST_SLICE].limit_bytes, request->spill_bytes);
	struct memory_turn_record *turn = &grant->record->turn;
	turn->takes = grant->takes_turns;
	turn->wait_ms = request->swap_wait_ms;
	atomic_store(&limits->slices[0].counts_calls, request->park_after_ms || turn->takes);
	if (grant->starts_off) {
		turn->is_others = 1;
		turn->off_since_ns = loop_now();
		grant->record->parked.step = PARKING_AWAY;
		atomic_store(&limits->slices[0].residence, ALIQUOT_ON_HOST);
		atomic_store(&limits->slices[0].grant_state, ALIQUOT_GRANT_PARKED);
	}
	limits->magic = ALIQUOT_LIMITS_MAGIC;
}

static void fill_usage(struct aliquot_usage *usage)
{
	usage->version = ALIQUOT_VERSION;
	usage->size = sizeof(*usage);
	usage->magic = ALIQUOT_USAGE_MAGIC;
}

/* 0, or -errno. */
static int open_private(struct grant *grant)
{
	const struct state *state = grant->arbiter->state;
	grant->records = private_directory_open_grant(&state->records, grant->directory);
	grant->pages = private_directory_open_grant(&state->pages, grant->directory);
	return grant->records < 0 ? grant->records : grant->pages < 0 ? grant->pages : 0;
}

/* 0, or -errno. */
static int make_record(struct grant *grant, const struct control_request *request,
                       const struct identity *owner)
{
	struct state *state = grant->arbiter->state;
	grant_files_remove_private(state, grant->directory); /* left by an earlier attempt */
	int error = open_private(grant);
	if (error)
		return error;
	int fd = page_file_make(grant->records, RECORD, sizeof(*grant->record), 0600);
	error = fd < 0 ? fd : mapping_open(&grant->record_mapping, fd, sizeof(*grant->record));
	if (fd >= 0)
		close(fd);
	if (error)
		return error;
	grant->record = grant->record_mapping.at;
	grant->limits = &grant->record->limits;
	fill_limits(grant, request, owner);
	return 0;
}

/* 0, or -errno. */
static int make_contents(struct grant *grant, int directory, int *listener)
{
	int writable = page_file_make(directory, "limits", sizeof(struct aliquot_limits), 0444);
	int error = writable < 0 ? writable
	                         : mapping_open(&grant->view_mapping, writable, sizeof(*grant->view));
	if (writable >= 0)
		close(writable);
	if (error)
		return error;
	grant->view = grant->view_mapping.at;
	grant_publish_all(grant);
	grant->limits_fd = page_file_open_for_readers(directory, "limits");
	if (grant->limits_fd < 0)
		return grant->limits_fd;
	grant->usage_fd = page_file_make(directory, "usage", sizeof(struct aliquot_usage), 0644);
	if (grant->usage_fd < 0)
		return grant->usage_fd;
	error = mapping_open(&grant->usage_mapping, grant->usage_fd, sizeof(struct aliquot_usage));
	if (error)
		return error;
	grant->usage = grant->usage_mapping.at;
	fill_usage(grant->usage);
	*listener = state_listen(directory, "socket", SOCK_SEQPACKET, socket_mode());
	return *listener < 0 ? *listener : 0;
}

bool grant_files_make(struct grant *grant, const struct control_request *request,
                      const struct identity *owner, int *listener, struct failure *failure)
{
	struct state *state = grant->arbiter->state;
	char dotted[ALIQUOT_NAME_SIZE + 16];
	int parent = state->folders[grant->folder];
	snprintf(dotted, sizeof(dotted), ".making-%s", grant->directory);
	state_remove_incomplete(state, grant->folder, dotted); /* left by an earlier attempt */
	int error = make_record(grant, request, owner), directory = -1;
	if (!error && mkdirat(parent, dotted, 0755))
		error = -errno;
	if (!error) {
		directory = openat(parent, dotted, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		error = directory < 0 ? -errno : 0;
	}
	if (!error)
		error = make_contents(grant, directory, listener);
	if (!error && renameat(parent, dotted, parent, grant->directory)) {
		error = -errno;
		close(*listener);
	}
	if (directory >= 0)
		close(directory);
	if (!error)
		return true;
	grant_files_close(grant);
	state_remove_incomplete(state, grant->folder, dotted);
	grant_files_remove_private(state, grant->directory);
	char path[GRANT_PATH_SIZE];
	grant_path(grant, path);
	return failure_set(failure, "cannot-make", "%.300s cannot be created: %s", path,
	                   strerror(-error));
}

/* Opens a file that not even its owner may write. Root just can; another user changes the mode for a
 * moment. */
static int open_writable(int directory, const char *name, mode_t mode)
{
	int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = openat(directory, name, flags);
	if (fd < 0 && errno == EACCES && !fchmodat(directory, name, mode | S_IWUSR, 0)) {
		fd = openat(directory, name, flags);
		fchmodat(directory, name, mode, 0);
	}
	return fd < 0 ? -errno : fd;
}

/* Maps a file; returns the error, or NULL. */
static const char *map_file(struct mapping *pages, int fd, size_t size)
{
	int error = fd < 0 ? fd : mapping_open(pages, fd, size);
	if (error == -EFBIG)
		return "shorter than its layout";
	return error < 0 ? strerror(-error) : NULL;
}

/* Whether the directory is where the arbiter would put that grant. */
static bool is_in_its_directory(const struct grant *grant, const struct aliquot_limits *record)
{
	if (!strchr(grant->directory, ':'))
		return !strcmp(record->name, grant->directory);
	return record->owner_uid == grant_directory_owner(grant->directory);
}

static const char *check_record(const struct grant *grant, const struct grant_record *record)
{
	const char *why = aliquot_limits_check(&record->limits, sizeof(record->limits));
	if (!why && !is_in_its_directory(grant, &record->limits))
		why = "it belongs to a grant of another name";
	if (!why && !memchr(record->together, 0, sizeof(record->together)))
		why = "the name for running together has no terminating zero";
	return why ? why : neighbours_invalid(&record->neighbours);
}

/* Makes a record of the page `limits` that an arbiter of version 1 left. Complete, or absent. */
static void import_record(struct grant *grant, int directory)
{
	struct grant_record *copy = calloc(1, sizeof(*copy));
	struct aliquot_limits *limits = copy ? &copy->limits : NULL;
	int from = openat(directory, "limits", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int to = page_file_make(grant->records, "." RECORD, sizeof(*copy), 0600);
	if (copy && from >= 0 && to >= 0 &&
	    read(from, limits, sizeof(*limits)) == (ssize_t)sizeof(*limits)) {
		for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++)
			if (atomic_load(&limits->processes[slot].state) == ALIQUOT_LIVE)
				limits->processes[slot].pages = GRANT_FILES_LOST_PAGES;
		if (write(to, copy, sizeof(*copy)) == (ssize_t)sizeof(*copy))
			renameat(grant->records, "." RECORD, grant->records, RECORD);
	}
	unlinkat(grant->records, "." RECORD, 0);
	free(copy);
	if (from >= 0)
		close(from);
	if (to >= 0)
		close(to);
}

/* Opens the record for writing. One of an earlier arbiter may lack what was added at its end since then:
 * that is zero. The descriptor, or -errno. */
static int open_whole_record(struct grant *grant)
{
	struct stat status;
	int fd = open_writable(grant->records, RECORD, 0600);
	if (fd < 0 || fstat(fd, &status) || status.st_size < (off_t)sizeof(struct aliquot_limits))
		return fd;
	int error = -posix_fallocate(fd, 0, sizeof(struct grant_record));
	if (!error)
		return fd;
	close(fd);
	return error;
}

static void open_record(struct grant *grant, int directory)
{
	const struct state *state = grant->arbiter->state;
	int error = open_private(grant);
	int fd = error ? error : open_whole_record(grant);
	if (fd == -ENOENT && state->version < STATE_VERSION) {
		import_record(grant, directory);
		fd = open_whole_record(grant);
	}
	const char *why = fd == -ENOENT ? "its record is missing"
	                                : map_file(&grant->record_mapping, fd, sizeof(*grant->record));
	if (fd >= 0)
		close(fd);
	if (!why)
		why = check_record(grant, grant->record_mapping.at);
	if (why) {
		grant_break(grant, "limits", why);
		mapping_close(&grant->record_mapping);
		return;
	}
	grant->record = grant->record_mapping.at;
	grant->limits = &grant->record->limits;
	grant_set_name(grant, grant->limits->owner_uid, grant->limits->name);
	grant->slice_count = grant->limits->slice_count;
}

/* Whatever happened to the view, it shows the record again. */
static void open_view(struct grant *grant, int directory)
{
	int writable = open_writable(directory, "limits", 0444);
	int error = writable < 0 ? 0 : -posix_fallocate(writable, 0, sizeof(struct aliquot_limits));
	const char *why = error ? strerror(-error)
	                        : map_file(&grant->view_mapping, writable, sizeof(*grant->view));
	if (writable >= 0)
		close(writable);
	if (!why) {
		grant->view = grant->view_mapping.at;
		grant_publish_all(grant);
		grant->limits_fd = page_file_open_for_readers(directory, "limits");
		if (grant->limits_fd < 0)
			why = strerror(-grant->limits_fd);
	}
	if (why)
		grant_break(grant, "limits", why);
}

static void open_usage(struct grant *grant, int directory)
{
	grant->usage_fd = open_writable(directory, "usage", 0644);
	const char *why = map_file(&grant->usage_mapping, grant->usage_fd,
	                           sizeof(struct aliquot_usage));
	if (!why)
		why = aliquot_usage_check(grant->usage_mapping.at, grant->usage_mapping.size);
	if (why)
		grant_break(grant, "usage", why);
	else
		grant->usage = grant->usage_mapping.at;
}

int grant_files_open(struct grant *grant, int *listener)
{
	int directory = openat(grant->arbiter->state->folders[grant->folder], grant->directory,
	                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0)
		return -errno;
	open_record(grant, directory);
	if (grant->limits)
		open_view(grant, directory);
	open_usage(grant, directory);
	*listener = state_listen(directory, "socket", SOCK_SEQPACKET, socket_mode());
	close(directory);
	if (*listener < 0)
		grant_break(grant, "socket", strerror(-*listener));
	return 0;
}

void grant_files_close(struct grant *grant)
{
	grant->record = NULL;
	grant->limits = grant->view = NULL;
	grant->usage = NULL;
	mapping_close(&grant->record_mapping);
	mapping_close(&grant->view_mapping);
	mapping_close(&grant->usage_mapping);
	int *const fds[] = {&grant->limits_fd, &grant->usage_fd, &grant->records, &grant->pages};
	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

void grant_files_remove(const struct grant *grant)
{
	struct state *state = grant->arbiter->state;
	state_remove_directory(state, grant->folder, grant->directory);
	grant_files_remove_private(state, grant->directory);
}

void grant_files_remove_private(struct state *state, const char *directory)
{
	private_directory_remove_grant(&state->pages, directory);
	private_directory_remove_grant(&state->records, directory);
}
