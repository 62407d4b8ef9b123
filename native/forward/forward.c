#define _GNU_SOURCE
#include "forward.h"

#include "glibc_floor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Only glibc has it, and the driver needs glibc: with another C library we can say so. */
#pragma weak gnu_get_libc_version

/* The fitting step points names here that this machine's driver does not have. */
FORWARD_EXPORT void aliquot_absent(void);
void aliquot_absent(void)
{
}

_Atomic int forward_loaded;
char forward_file[PATH_MAX];

static const char *const installed_at[] = {
#if defined(__x86_64__)
	"/usr/lib/x86_64-linux-gnu",
#elif defined(__aarch64__)
	"/usr/lib/aarch64-linux-gnu",
#endif
	"/usr/lib64",
	"/usr/lib",
	"/usr/local/nvidia/lib64",
	"/usr/lib/wsl/lib",
};

void forward_say(const char *format, ...)
{
	char line[512] = "aliquot: ";
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(line + 9, sizeof(line) - 10, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	size_t size = strlen(line);
	line[size++] = '\n';
	syscall(SYS_write, 2, line, size); /* unlike write(), no cancellation point */
}

bool forward_grant(char directory[PATH_MAX], uint64_t *created)
{
	const char *given = FORWARD_GRANT;
	*created = 0;
	if (access(FORWARD_GRANT, F_OK) != 0)
		given = secure_getenv("ALIQUOT_GRANT");
	if (!given)
		return false;
	const char *mark = strrchr(given, '#');
	size_t length = mark ? (size_t)(mark - given) : strlen(given);
	if (length >= PATH_MAX)
		return false;
	memcpy(directory, given, length);
	directory[length] = 0;
	if (mark)
		*created = strtoull(mark + 1, NULL, 16);
	return true;
}

/* stat() has a new symbol since glibc 2.33: ask the kernel. */
static bool identify(const char *path, struct stat *out)
{
	return syscall(SYS_newfstatat, AT_FDCWD, path, out, 0) == 0;
}

static bool is_other_file(const char *path, const char *self)
{
	struct stat theirs, ours;
	if (!identify(path, &theirs))
		return false;
	return !self || !identify(self, &ours) || theirs.st_ino != ours.st_ino ||
	       theirs.st_dev != ours.st_dev;
}

/* The C library's dlopen, since that name may be our hook, which would come back here. Called from
 * here it opens a library in our own namespace: there our name is found before the library's, which
 * is the same. In another namespace the library would be found by a program that asks for us. */
static void *open_here(const char *path)
{
	__typeof__(&dlopen) next = (__typeof__(&dlopen))dlsym(RTLD_NEXT, "dlopen");
	return next ? next(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* Open the library in a folder. NULL: the folder has none, or it is the stand-in itself. */
static void *try_folder(const char *folder, size_t length, const char *self)
{
	char path[PATH_MAX];
	int written = snprintf(path, PATH_MAX, "%.*s/%s", (int)length, folder, forward_library);
	if (length == 0 || written < 0 || written >= PATH_MAX || !is_other_file(path, self))
		return NULL;
	void *library = open_here(path);
	if (!library)
		forward_say("the driver's %s cannot be opened: %s", path, dlerror());
	else if (!dlsym(library, "aliquot_absent")) {
		snprintf(forward_file, sizeof(forward_file), "%s", path);
		return library;
	}
	return NULL;
}

/* Whether a folder is one of NVIDIA's forward-compatibility packages (cuda-12.9/compat). */
static bool is_compat(const char *folder, size_t length)
{
	return memmem(folder, length, "compat", strlen("compat"));
}

/* Open the library in the first folder of $LD_LIBRARY_PATH that has it. */
static void *search(const char *self, bool only_compat)
{
	void *library = NULL;
	for (const char *list = secure_getenv("LD_LIBRARY_PATH"); !library && list && *list;) {
		size_t length = strcspn(list, ":;");
		if (!only_compat || is_compat(list, length))
			library = try_folder(list, length, self);
		list += length + (list[length] != 0);
	}
	return library;
}

static void *open_library(void)
{
	Dl_info info;
	if (!gnu_get_libc_version)
		return NULL;
	const char *self = dladdr((void *)&forward_load, &info) ? info.dli_fname : NULL;
	const char *folder = secure_getenv("ALIQUOT_DRIVER_DIR");
	void *library = try_folder(FORWARD_DRIVER, strlen(FORWARD_DRIVER), self);
	if (!library && !secure_getenv("ALIQUOT_SIMULATE"))
		library = search(self, true);
	if (!library && folder)
		library = try_folder(folder, strlen(folder), self);
	if (!library)
		library = search(self, false);
	for (size_t i = 0; !library && i < sizeof(installed_at) / sizeof(*installed_at); i++)
		library = try_folder(installed_at[i], strlen(installed_at[i]), self);
	return library;
}

/* Other threads jump through a slot while it is written: they must find the library complete. */
static void set_slot(unsigned slot, void *function)
{
	__atomic_store_n(&forward_real[slot], function, __ATOMIC_RELEASE);
}

static void fill_slots(void *library)
{
	const char *name = forward_names;
	for (unsigned slot = 0; slot < forward_known; slot++) {
		set_slot(slot, dlsym(library, name));
		name += strlen(name) + 1;
	}
	for (unsigned slot = forward_known; slot < forward_count; slot++) {
		name = forward_spares[slot - forward_known];
		if (strncmp(name, "aliquot_", 8) != 0)
			set_slot(slot, dlsym(library, name));
	}
}

/* The process in which a thread is opening the library. In a child that is forked meanwhile, the
 * dynamic linker is in the middle of something that nobody finishes: the child gets no library. */
static _Atomic pid_t opening;

static bool was_forked_while_opening(void)
{
	pid_t none = 0;
	if (atomic_compare_exchange_strong(&opening, &none, getpid()) || none == getpid())
		return false;
	int expected = 0;
	if (atomic_compare_exchange_strong(&forward_loaded, &expected, -1))
		forward_say("this process was forked while another thread opened %s: no GPU",
		            forward_library);
	return true;
}

/* Without a lock, since the loader has one: two threads may do this at the same time, and both
 * write the same values. */
bool forward_load(void)
{
	int state = atomic_load_explicit(&forward_loaded, memory_order_acquire);
	if (state)
		return state > 0;
	int before = errno, expected = 0;
	if (was_forked_while_opening())
		return false;
	void *library = open_library();
	if (library)
		fill_slots(library);
	bool is_first = atomic_compare_exchange_strong(&forward_loaded, &expected, library ? 1 : -1);
	atomic_store(&opening, 0);
	if (is_first && !library)
		forward_say(gnu_get_libc_version
						? "no %s of a driver found; ask: aliquot doctor"
						: "%s needs glibc, and this program's C library is another (musl?): "
						  "no GPU; use an image with glibc",
		            forward_library);
	errno = before;
	return atomic_load(&forward_loaded) > 0;
}

int forward_missing(void)
{
	return atomic_load(&forward_loaded) > 0 ? forward_error_missing : forward_error_no_library;
}

/* Called by the jumps of forward_entry.inc while their slot is empty. */
void *forward_resolve(unsigned slot);
void *forward_resolve(unsigned slot)
{
	forward_load();
	void *function = __atomic_load_n(&forward_real[slot], __ATOMIC_RELAXED);
	return function ? function : (void *)forward_missing;
}
