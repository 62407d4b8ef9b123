/* Forwarding to the real library whose name a stand-in has: the part that both stand-ins share.
 *
 * The first call of any function opens the real library: a process that only maps the stand-in pays
 * nothing. From then on a call that is not hooked is one load and one jump.
 *
 * The real library is looked for in FORWARD_DRIVER (in containers, where no variable counts), the
 * folders of $LD_LIBRARY_PATH that hold a driver library newer than the kernel's driver (NVIDIA's
 * forward-compatibility packages: a folder `compat`; not on a simulated machine),
 * $ALIQUOT_DRIVER_DIR (set with the grant), the other folders of $LD_LIBRARY_PATH, and the folders
 * where drivers are installed; the first file that exists and is not the stand-in itself counts. A
 * setuid program reads none of these variables.
 *
 * A stand-in is never unloaded, and its real library is in the stand-in's own namespace, after it: so
 * the name that both have always means the stand-in.
 *
 * Guarantees: nothing here exits, aborts, or changes signals. If there is no real library, every
 * call returns an error of the API, and stderr has the reason once.
 */
#ifndef ALIQUOT_FORWARD_H
#define ALIQUOT_FORWARD_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where a container finds the driver's own files, and its grant: paths that only root can create.
 */
#define FORWARD_DRIVER "/usr/local/aliquot/driver"
#define FORWARD_GRANT "/run/aliquot/grant"

#define FORWARD_EXPORT __attribute__((visibility("default")))

/* Each stand-in defines these: its real library's name, and the results of calls that cannot be
 * made. */
extern const char forward_library[];
extern const int forward_error_missing;    /* this driver lacks the function */
extern const int forward_error_no_library; /* there is no driver */

/* Generated from the header. */
extern void *forward_real[];
extern const unsigned forward_known, forward_count;
extern const char forward_names[];
extern const char forward_spares[][64];
/* Our hook for the real library's `function`, or `function` itself if we have none. */
void *forward_substitute(void *function);

/* Whether forward_real is filled: 0 not tried, 1 filled, -1 there is no library. */
extern _Atomic int forward_loaded;

/* The real library's path, once it is loaded. */
extern char forward_file[PATH_MAX];

/* Open the real library and fill forward_real, once; false: there is no library. */
bool forward_load(void);

/* The first line of every hook: hooks use several functions of the real library. */
static inline void forward_begin(void)
{
	if (__builtin_expect(atomic_load_explicit(&forward_loaded, memory_order_acquire) <= 0, 0))
		forward_load();
}

/* The result of a function that the real library lacks. */
int forward_missing(void);

/* The grant's directory: FORWARD_GRANT if that exists, or else $ALIQUOT_GRANT up to its `#`. After
 * the `#` comes the grant's creation time, which tells it from a later grant of the same name;
 * *created is 0 if it is missing. False: there is no grant. */
bool forward_grant(char directory[PATH_MAX], uint64_t *created);

/* Write one line to stderr, "aliquot: ...". It is not buffered, so that no fork prints it twice. */
void forward_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
