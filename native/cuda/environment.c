#define _GNU_SOURCE
#include "environment.h"

#include "visible.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Our entry, which stays here for threads that still read it, and the entry that it replaced; NULL:
 * the program had none. */
static char ours[sizeof(ENVIRONMENT_VISIBLE) + VISIBLE_SIZE];
static char *theirs;

static void set(char **slot, char *entry)
{
	__atomic_store_n(slot, entry, __ATOMIC_RELEASE);
}

static bool is_visible(const char *entry)
{
	size_t length = sizeof(ENVIRONMENT_VISIBLE) - 1;
	return strncmp(entry, ENVIRONMENT_VISIBLE, length) == 0 && entry[length] == '=';
}

/* A longer copy of the list, with our entry as its last. */
static void append(char **list, size_t size)
{
	char **copy = malloc((size + 2) * sizeof(*copy));
	if (!copy)
		return;
	if (size)
		memcpy(copy, list, size * sizeof(*copy));
	copy[size] = ours;
	copy[size + 1] = NULL;
	__atomic_store_n(&environ, copy, __ATOMIC_RELEASE);
}

void environment_show(const char *value)
{
	char **slot = environ;
	snprintf(ours, sizeof(ours), "%s=%s", ENVIRONMENT_VISIBLE, value);
	while (slot && *slot && !is_visible(*slot))
		slot++;
	theirs = slot ? *slot : NULL;
	if (theirs)
		set(slot, ours);
	else
		append(environ, slot ? (size_t)(slot - environ) : 0);
}

void environment_restore(void)
{
	char **slot = environ;
	while (slot && *slot && *slot != ours)
		slot++;
	if (!slot || !*slot)
		return; /* nothing was shown, or the program has set the variable since */
	if (theirs) {
		set(slot, theirs);
		return;
	}
	/* It is the last entry, unless the program has added one since: then that one moves up. */
	char **last = slot;
	while (last[1])
		last++;
	set(slot, *last);
	set(last, NULL);
}
