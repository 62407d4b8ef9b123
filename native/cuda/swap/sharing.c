/* IPC handles of memory that can leave the GPU: made, opened and closed without the driver.
 *
 * The driver has no IPC handles for such memory; it has descriptors. So a handle of ours says who has the
 * memory and by which key. With its first handle a process begins to listen on a socket, and a thread
 * answers each process that asks with a descriptor of the piece. The process that opens a handle asks for
 * one, maps the piece and keeps nothing open. From its first handle on a piece is fixed: it does not leave.
 *
 * Who may ask: processes of the same user, and root, that know the key, which only handles have. A new piece
 * at the same address has another key, so a handle of freed memory opens nothing.
 *
 * Who may answer: the user that the handle says, or the own one. When a process has ended, anybody can take
 * the name of its socket, and would give memory of his own.
 *
 * How it is charged: exported.h.
 */
#define _GNU_SOURCE
#include "aliquot/descriptors.h"
#include "aliquot/lock.h"
#include "allocation.h"
#include "cancel.h"
#include "gate/base.h"
#include "gate/gate.h"
#include "pieces.h"
#include "places.h"
#include "residence.h"
#include "session.h"
#include "swappable.h"
#include "thread.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>

#define MAGIC UINT64_C(0x4350495451494c41) /* "ALIQTIPC" */
#define ASK_MS 1000                        /* for a process that has connected */
#define ANSWER_MS 10000                    /* for the process that has the memory */
#define EXIT_MS 2000
#define FULL_NS (10 * 1000 * 1000) /* this process has too many files open */

/* What a CUipcMemHandle has in it. Another process made it: nothing of it is believed. */
struct handle {
	uint64_t magic;
	uint64_t listener; /* the name of the socket */
	uint64_t key;
	uint64_t piece; /* its address there */
	uint64_t piece_bytes;
	uint64_t offset; /* of the allocation in the piece */
	uint64_t user;   /* whose socket it is */
};

struct question {
	uint64_t magic, key, piece, offset;
};

/* A piece of another process that is mapped here. */
struct opened {
	uint64_t listener, key;
	CUdeviceptr address;
	uint64_t bytes;
	CUmemGenericAllocationHandle handle;
	CUcontext context;
	uint32_t times; /* opened and not closed */
	struct opened *next;
};

/* A fork wipes it: a child has no pieces and listens on nothing. */
struct sharing {
	struct aliquot_lock lock;
	_Atomic uint64_t name; /* of our socket; 0: this process does not listen */
	int listener;
	uid_t user; /* when it began to listen: so the kernel says to those who connect */
	struct opened *opened;
	_Atomic bool is_exporting, is_ending;
};

static void *_Atomic page;

static struct sharing *sharing(void)
{
	return session_wiped_memory(&page, sizeof(struct sharing));
}

/* 0: there is none. */
static uint64_t random_number(void)
{
	uint64_t number = 0;
	long got = syscall(SYS_getrandom, &number, sizeof(number), 0);
	return got == (long)sizeof(number) ? number : 0;
}

/* The address of a socket that has no place in the file system. */
static socklen_t socket_address(uint64_t name, struct sockaddr_un *out)
{
	memset(out, 0, sizeof(*out));
	out->sun_family = AF_UNIX;
	int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "aliquot-ipc-%016llx",
	                      (unsigned long long)name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void set_patience(int fd, long milliseconds)
{
	struct timeval patience = {.tv_sec = milliseconds / 1000,
	                           .tv_usec = milliseconds % 1000 * 1000};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

/* The user at the other end; false: the kernel does not say. */
static bool read_user(int fd, uid_t *user)
{
	struct ucred peer = {0};
	socklen_t size = sizeof(peer);
	bool is_known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
	*user = peer.uid;
	return is_known;
}

/* --- the process that has the memory -------------------------------------------------------------- */

static bool may_ask(int fd)
{
	uid_t user;
	return read_user(fd, &user) && (user == geteuid() || user == 0);
}

/* Whether an allocation begins there in the piece: it stays charged while the descriptor is open. */
static bool is_allocation(const struct question *question)
{
	CUdeviceptr base = question->piece + question->offset;
	struct place view;
	return places_find(base, &view) && view.base == base && view.piece == question->piece;
}

/* A descriptor of the piece, or -1. At exit() the driver is not called any more. */
static int export(struct sharing *self, const struct question *question)
{
	int descriptor = -1;
	atomic_store(&self->is_exporting, true);
	if (!atomic_load(&self->is_ending) && is_allocation(question) &&
	    places_export(question->piece, question->key, &descriptor) == CUDA_SUCCESS &&
	    !allocation_exported(question->piece + question->offset, descriptor)) {
		close(descriptor); /* it was freed meanwhile, and is not charged any more */
		descriptor = -1;
	}
	atomic_store(&self->is_exporting, false);
	return descriptor;
}

static void answer(struct sharing *self, int fd)
{
	struct question question;
	set_patience(fd, ASK_MS);
	if (!may_ask(fd) || recv(fd, &question, sizeof(question), 0) != (ssize_t)sizeof(question) ||
	    question.magic != MAGIC)
		return;
	int descriptor = export(self, &question);
	uint64_t found = descriptor >= 0;
	aliquot_send_descriptors(fd, &found, sizeof(found), &descriptor, found, 0);
	if (descriptor >= 0)
		close(descriptor);
}

/* Whether the number is still our socket's: a program may close all that it does not know. */
static bool is_ours(int listener, uint64_t name)
{
	struct sockaddr_un address, ours;
	socklen_t size = sizeof(address), expected = socket_address(name, &ours);
	memset(&address, 0, sizeof(address));
	return getsockname(listener, (struct sockaddr *)&address, &size) == 0 && size == expected &&
	       memcmp(&address, &ours, size) == 0;
}

static void *serve(void *memory)
{
	struct sharing *self = memory;
	struct timespec moment = {.tv_nsec = FULL_NS};
	gate_relax_capture_mode();
	while (is_ours(self->listener, self->name)) {
		int fd = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) {
			nanosleep(&moment, NULL);
			continue;
		}
		answer(self, fd);
		close(fd);
	}
	return NULL;
}

static void end(void)
{
	struct sharing *self = atomic_load(&page);
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	if (!self)
		return;
	atomic_store(&self->is_ending, true);
	for (unsigned i = 0; i < EXIT_MS && atomic_load(&self->is_exporting); i++)
		nanosleep(&moment, NULL);
}

/* With the lock. */
static bool listen_now(struct sharing *self)
{
	struct sockaddr_un address;
	uint64_t name = random_number();
	int fd = name ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
	if (fd < 0)
		return false;
	self->listener = fd;
	self->user = geteuid();
	self->name = name;
	if (bind(fd, (struct sockaddr *)&address, socket_address(name, &address)) == 0 &&
	    listen(fd, SOMAXCONN) == 0 && thread_start(serve, self)) {
		atexit(end);
		return true;
	}
	self->name = 0;
	close(fd);
	return false;
}

/* The name of this process's socket; 0: it cannot have one. */
static uint64_t listening(void)
{
	struct sharing *self = sharing();
	if (!self)
		return 0;
	int cancel = cancel_disable();
	aliquot_lock(&self->lock);
	uint64_t name = self->name || listen_now(self) ? self->name : 0;
	aliquot_unlock(&self->lock);
	cancel_restore(cancel);
	return name;
}

CUresult hook_ipc_get(__typeof__(&cuIpcGetMemHandle) real, CUipcMemHandle *out, CUdeviceptr pointer)
{
	struct place view;
	if (!places_find(pointer, &view) || !out)
		return real(out, places_driver_address(pointer));
	if (view.is_on_host) {
		forward_say("memory on the host (--spill) has no IPC handles");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	uint64_t listener = listening();
	struct handle handle = {.magic = MAGIC,
	                        .listener = listener,
	                        .user = listener ? sharing()->user : 0,
	                        .piece = view.piece,
	                        .piece_bytes = view.piece_bytes,
	                        .offset = view.base - view.piece};
	gate_close_before_wait();
	swappable_wait(view.context); /* as the driver does */
	uint64_t fresh = random_number();
	handle.key = handle.listener && fresh ? places_share(view.piece, fresh) : 0;
	if (!handle.key) {
		forward_say("memory of a slice with --swap cannot be shared: no socket or no thread");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	_Static_assert(sizeof(handle) <= sizeof(*out), "a handle fits");
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/* --- the process that opens it -------------------------------------------------------------------- */

/* A program's signals do not end the wait, and do not prolong it. */
static int receive(int fd)
{
	int64_t until = residence_now_ms() + ANSWER_MS;
	uint64_t found;
	int descriptor;
	bool wrong;
	ssize_t size;
	do
		size = aliquot_receive_descriptor(fd, &found, sizeof(found), &descriptor, &wrong, 0);
	while (size < 0 && errno == EINTR && residence_now_ms() < until);
	/* The other has closed its copy when it closes the connection: none is open but this one. */
	while (descriptor >= 0 && recv(fd, &found, sizeof(found), 0) < 0 && errno == EINTR &&
	       residence_now_ms() < until)
		continue;
	return descriptor;
}

static bool may_answer(int fd, const struct handle *handle)
{
	uid_t user;
	return read_user(fd, &user) && (user == geteuid() || user == handle->user);
}

/* A descriptor of the piece; -1: there is none. */
static int ask_for(const struct handle *handle)
{
	struct sockaddr_un address;
	socklen_t size = socket_address(handle->listener, &address);
	struct question question = {MAGIC, handle->key, handle->piece, handle->offset};
	int descriptor = -1, cancel = cancel_disable();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		set_patience(fd, ANSWER_MS);
		if (connect(fd, (struct sockaddr *)&address, size) == 0 && may_answer(fd, handle) &&
		    send(fd, &question, sizeof(question), MSG_NOSIGNAL) == (ssize_t)sizeof(question))
			descriptor = receive(fd);
		close(fd);
	}
	cancel_restore(cancel);
	return descriptor;
}

static void unmap(const struct opened *piece)
{
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	if (REAL(cuMemUnmap)(piece->address, piece->bytes) == CUDA_SUCCESS)
		REAL(cuMemAddressFree)(piece->address, piece->bytes);
	REAL(cuMemRelease)(piece->handle);
	gate_restore_capture_mode(mode);
}

/* Map the memory of piece->handle, which is released after an error. */
static CUresult map(struct opened *piece)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = REAL(cuCtxGetDevice)(&access.location.id);
	if (result == CUDA_SUCCESS)
		result = REAL(cuMemAddressReserve)(&piece->address, piece->bytes, PIECE_PAGE, 0, 0);
	if (result != CUDA_SUCCESS) {
		REAL(cuMemRelease)(piece->handle);
		return result;
	}
	result = REAL(cuMemMap)(piece->address, piece->bytes, 0, piece->handle, 0);
	if (result != CUDA_SUCCESS) {
		REAL(cuMemAddressFree)(piece->address, piece->bytes);
		REAL(cuMemRelease)(piece->handle);
		return result;
	}
	result = REAL(cuMemSetAccess)(piece->address, piece->bytes, &access, 1);
	if (result != CUDA_SUCCESS)
		unmap(piece);
	return result;
}

static CUresult import(const struct handle *handle, struct opened *piece)
{
	int descriptor = ask_for(handle);
	if (descriptor < 0) {
		forward_say("memory of another process cannot be opened: it was freed, or that process "
		            "has ended, is another user's or does not answer");
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	CUresult result = REAL(
		cuMemImportFromShareableHandle)(&piece->handle, (void *)(intptr_t)descriptor,
		                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(descriptor);
	if (result == CUDA_SUCCESS)
		result = map(piece);
	gate_restore_capture_mode(mode);
	return result;
}

/* With the lock: count one more use of a piece that is mapped already; NULL: it is not. */
static struct opened *use_again(struct sharing *self, const struct handle *handle)
{
	struct opened *piece = self->opened;
	while (piece && (piece->listener != handle->listener || piece->key != handle->key))
		piece = piece->next;
	if (piece)
		piece->times++;
	return piece;
}

static CUdeviceptr find_opened(struct sharing *self, const struct handle *handle)
{
	aliquot_lock(&self->lock);
	const struct opened *piece = use_again(self, handle);
	aliquot_unlock(&self->lock);
	return piece ? piece->address : 0;
}

/* Remember a piece, unless another thread was faster. Returns where it is mapped. */
static CUdeviceptr remember(struct sharing *self, const struct handle *handle, struct opened *made)
{
	aliquot_lock(&self->lock);
	const struct opened *other = use_again(self, handle);
	if (!other) {
		made->next = self->opened;
		self->opened = made;
	}
	CUdeviceptr address = other ? other->address : made->address;
	aliquot_unlock(&self->lock);
	if (other) {
		unmap(made);
		free(made);
	}
	return address;
}

static CUresult open_piece(struct sharing *self, const struct handle *handle, CUcontext context,
                           CUdeviceptr *address)
{
	*address = find_opened(self, handle);
	if (*address)
		return CUDA_SUCCESS;
	struct opened *made = calloc(1, sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct opened){.listener = handle->listener,
	                        .key = handle->key,
	                        .bytes = handle->piece_bytes,
	                        .context = context,
	                        .times = 1};
	CUresult result = import(handle, made);
	if (result == CUDA_SUCCESS)
		*address = remember(self, handle, made);
	else
		free(made);
	return result;
}

CUresult hook_ipc_open(__typeof__(&cuIpcOpenMemHandle_v2) real, CUdeviceptr *out,
                       CUipcMemHandle bytes, unsigned flags)
{
	struct handle handle;
	CUcontext context = NULL;
	memcpy(&handle, &bytes, sizeof(handle));
	if (handle.magic != MAGIC || !out)
		return real(out, bytes, flags);
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.offset >= handle.piece_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	struct sharing *self = session_is_open() ? sharing() : NULL;
	if (!self)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context ||
	    handle.listener == self->name)
		return CUDA_ERROR_INVALID_CONTEXT;
	CUdeviceptr address;
	CUresult result = open_piece(self, &handle, context, &address);
	if (result == CUDA_SUCCESS)
		*out = address + handle.offset;
	return result;
}

/* The opened piece with this byte is used once less. *last: that was its last use, and it is the caller's. */
static bool close_once(struct sharing *self, CUdeviceptr pointer, struct opened **last)
{
	aliquot_lock(&self->lock);
	struct opened **at = &self->opened, *piece;
	while ((piece = *at) && pointer - piece->address >= piece->bytes)
		at = &piece->next;
	*last = piece && --piece->times == 0 ? piece : NULL;
	if (*last)
		*at = piece->next;
	aliquot_unlock(&self->lock);
	return piece != NULL;
}

CUresult hook_ipc_close(__typeof__(&cuIpcCloseMemHandle) real, CUdeviceptr pointer)
{
	struct sharing *self = atomic_load(&page);
	struct opened *last;
	if (!self || !session_is_open() || !close_once(self, pointer, &last))
		return real(pointer);
	gate_close_before_wait();
	if (last) {
		swappable_wait(last->context);
		unmap(last);
		free(last);
	}
	return CUDA_SUCCESS;
}
