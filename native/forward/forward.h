/* Forwarding to the library whose name we took: the part that both stand-ins share.
 *
 * The real library is opened at the first call of any of its functions and never before: a process
 * that only has the stand-in mapped pays nothing for it. From then on a call that is not hooked is
 * one load and one jump.
 *
 * Where the real library is looked for, first that exists and is not the stand-in itself:
 * $ALIQUOT_DRIVER_DIR (set by whoever made the grant), FORWARD_DRIVER (in containers, whose programs
 * may be started in any environment), the folders of $LD_LIBRARY_PATH, the places where drivers are
 * installed. A program that runs with more rights than its user has (setuid) looks at no variable.
 *
 * Guarantees: nothing here exits, aborts, or touches a signal; a library that cannot be found
 * makes every call return the API's own error, and says why once on stderr.
 */
#ifndef ALIQUOT_FORWARD_H
#define ALIQUOT_FORWARD_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where a container is shown the driver's own files, and its grant: places that only root can make. */
#define FORWARD_DRIVER "/usr/local/aliquot/driver"
#define FORWARD_GRANT "/run/aliquot/grant"

#define FORWARD_EXPORT __attribute__((visibility("default")))

/* Each stand-in defines these: its real library's name, and what a call gives that cannot be made. */
extern const char forward_library[];
extern const int forward_error_missing;    /* this driver does not have the function */
extern const int forward_error_no_library; /* there is no driver */

/* Generated from the header. */
extern void *forward_real[];
extern const unsigned forward_known, forward_count;
extern const char forward_names[];
extern const char forward_spares[][64];
/* Our function for the real library's `function`, or `function` itself where we have none. */
void *forward_substitute(void *function);

/* Whether forward_real is filled: 0 not tried, 1 it is, -1 there is no library. */
extern _Atomic int forward_loaded;

/* Open the real library and fill forward_real, once; true: it is there. */
bool forward_load(void);

/* The first line of every hook: a hook uses more than its own slot, so all must be filled. */
static inline void forward_begin(void)
{
	if (__builtin_expect(atomic_load_explicit(&forward_loaded, memory_order_acquire) <= 0, 0))
		forward_load();
}

/* What a function returns that the real library lacks. */
int forward_missing(void);

/* The grant's directory: what $ALIQUOT_GRANT says before its `#`, else FORWARD_GRANT if there is one;
 * after the `#` stands when the grant was made, which tells it from a later one of the same name
 * (*created is 0 where that is not said). False: there is no grant. */
bool forward_grant(char directory[PATH_MAX], uint64_t *created);

/* One line on stderr, "aliquot: ...", with no buffer that a fork could print twice. */
void forward_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
