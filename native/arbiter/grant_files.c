#include "grant_files.h"

#include "aliquot/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A peer of another user must be able to connect, to be refused with a reason. */
static mode_t socket_mode(void)
{
	return geteuid() == 0 ? 0666 : 0600;
}

static int make_file(int directory, const char *name, size_t size, mode_t mode)
{
	int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	int error = -posix_fallocate(fd, 0, (off_t)size);
	if (!error && fchmod(fd, mode))
		error = -errno;
	if (error) {
		close(fd);
		return error;
	}
	return fd;
}

static void fill_limits(struct grant *grant, const struct control_request *request,
                        const struct identity *owner)
{
	struct aliquot_limits *limits = grant->limits;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	limits->version = ALIQUOT_VERSION;
	limits->size = sizeof(*limits);
	memcpy(limits->name, grant->name, sizeof(limits->name));
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
		slice->gpu_bytes = gpu->memory_bytes;
		atomic_store(&slice->limit_bytes, asked->memory_bytes);
		atomic_store(&slice->headroom_bytes, ledger_headroom(asked->memory_bytes));
		atomic_store(&slice->context_bytes, gpu_context_bytes(gpu, asked->memory_bytes));
		atomic_store(&slice->compute_percent, asked->compute_percent);
		atomic_store(&slice->policy, (uint32_t)asked->policy);
		atomic_store(&slice->priority, (uint32_t)asked->priority);
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
static int make_contents(struct grant *grant, int directory, const struct control_request *request,
                         const struct identity *owner, int *listener)
{
	int writable = make_file(directory, "limits", sizeof(struct aliquot_limits), 0444);
	if (writable < 0)
		return writable;
	int error = mapping_open(&grant->limits_mapping, writable, sizeof(struct aliquot_limits));
	close(writable);
	if (error)
		return error;
	grant->limits = grant->limits_mapping.at;
	grant->limits_fd = openat(directory, "limits", O_RDONLY | O_CLOEXEC);
	if (grant->limits_fd < 0)
		return -errno;
	grant->usage_fd = make_file(directory, "usage", sizeof(struct aliquot_usage), 0644);
	if (grant->usage_fd < 0)
		return grant->usage_fd;
	error = mapping_open(&grant->usage_mapping, grant->usage_fd, sizeof(struct aliquot_usage));
	if (error)
		return error;
	grant->usage = grant->usage_mapping.at;
	fill_limits(grant, request, owner);
	fill_usage(grant->usage);
	*listener = state_listen(directory, "socket", SOCK_SEQPACKET, socket_mode());
	return *listener < 0 ? *listener : 0;
}

bool grant_files_make(struct grant *grant, const struct control_request *request,
                      const struct identity *owner, int *listener, struct failure *failure)
{
	struct state *state = grant->arbiter->state;
	char dotted[ALIQUOT_NAME_SIZE + 16];
	snprintf(dotted, sizeof(dotted), ".making-%s", grant->name);
	state_remove_incomplete(state, dotted); /* left by an earlier attempt */
	int error = mkdirat(state->grants, dotted, 0755) ? -errno : 0;
	int directory = -1;
	if (!error) {
		directory = openat(state->grants, dotted, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		error = directory < 0 ? -errno : 0;
	}
	if (!error)
		error = make_contents(grant, directory, request, owner, listener);
	if (!error && renameat(state->grants, dotted, state->grants, grant->name)) {
		error = -errno;
		close(*listener);
	}
	if (directory >= 0)
		close(directory);
	if (!error)
		return true;
	grant_files_close(grant);
	state_remove_incomplete(state, dotted);
	return failure_set(failure, "cannot-make", "%s/grants/%s cannot be created: %s", state->path,
	                   grant->name, strerror(-error));
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

/* Maps a file of the directory; returns the error, or NULL. */
static const char *map_file(struct mapping *pages, int fd, size_t size)
{
	int error = fd < 0 ? fd : mapping_open(pages, fd, size);
	if (error == -EFBIG)
		return "shorter than its layout";
	return error < 0 ? strerror(-error) : NULL;
}

static void open_limits(struct grant *grant, int directory)
{
	int writable = open_writable(directory, "limits", 0444);
	const char *why = map_file(&grant->limits_mapping, writable, sizeof(struct aliquot_limits));
	if (writable >= 0)
		close(writable);
	const struct aliquot_limits *limits = grant->limits_mapping.at;
	if (!why)
		why = aliquot_limits_check(limits, grant->limits_mapping.size);
	if (!why && strcmp(limits->name, grant->name))
		why = "it belongs to a grant of another name";
	if (why) {
		grant_break(grant, "limits", why);
		mapping_close(&grant->limits_mapping);
		return;
	}
	grant->limits = grant->limits_mapping.at;
	grant->slice_count = limits->slice_count;
	grant->limits_fd = openat(directory, "limits", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (grant->limits_fd < 0)
		grant_break(grant, "limits", strerror(errno));
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
	int directory = openat(grant->arbiter->state->grants, grant->name,
	                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0)
		return -errno;
	open_limits(grant, directory);
	open_usage(grant, directory);
	*listener = state_listen(directory, "socket", SOCK_SEQPACKET, socket_mode());
	close(directory);
	if (*listener < 0)
		grant_break(grant, "socket", strerror(-*listener));
	return 0;
}

void grant_files_close(struct grant *grant)
{
	grant->limits = NULL;
	grant->usage = NULL;
	mapping_close(&grant->limits_mapping);
	mapping_close(&grant->usage_mapping);
	if (grant->limits_fd >= 0)
		close(grant->limits_fd);
	if (grant->usage_fd >= 0)
		close(grant->usage_fd);
	grant->limits_fd = grant->usage_fd = -1;
}
