/* The identity of a process, as the kernel reports it.
 *
 * A pid may be reused. A pid with its start time names one process for as long as the machine is up,
 * and a pidfd says when that process is dead. Nothing here trusts what a process says of itself.
 */
#ifndef ARBITER_IDENTITY_H
#define ARBITER_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_NAME_SIZE 16 /* the kernel's own length of a task's name */

/* Identifies the program that a process runs, by the addresses at which the kernel put it. Only exec
 * changes them. All zero: the kernel does not say. */
struct image {
	uint64_t start_code, end_code, start_stack; /* /proc/PID/stat's fields 26 to 28 */
};

struct identity {
	int32_t pid;
	uint32_t uid;
	uint64_t start_time; /* /proc/PID/stat's field 22 */
	struct image image;
	int pidfd; /* the owner of this struct closes it */
};

/* The process that connected `socket`. 0; -ESRCH: it is dead; -EXDEV: it is in a pid namespace that
 * this process does not see; another -errno: the kernel could not tell. */
int identity_of_peer(int socket, struct identity *out);

#define IDENTITY_ANY_USER UINT32_MAX

/* The process that has that pid and start time, if its user is `uid`. 0; -ESRCH: it is dead, and the pid
 * may be another process's; -EPERM: it is another user's; another -errno: the kernel could not tell. */
int identity_of_process(int32_t pid, uint64_t start_time, uint32_t uid, struct identity *out);

/* Closes its pidfd, if it has one. */
void identity_close(const struct identity *identity);

/* The uid that connected `socket`. */
int identity_uid_of_peer(int socket, uint32_t *uid);
/* The pid that connected `socket`, dead or alive. */
int identity_pid_of_peer(int socket, int32_t *pid);

/* A pidfd of a process from before a restart; -ESRCH: it is dead; another -errno: could not tell. */
int identity_reopen(int32_t pid, uint64_t start_time);

bool identity_is_alive(int pidfd);

/* Sends SIGKILL to the process of a pidfd. 0, or -errno. */
int identity_kill(int pidfd);

/* Whether a signal or a debugger has stopped the process. *cpu_ticks: the processor time that it has used; it stands
 * still while the process is stopped. */
bool identity_is_stopped(int32_t pid, uint64_t *cpu_ticks);

/* When the process started; 0, or -errno. */
int identity_start_time(int32_t pid, uint64_t *out);

/* Whether it is in another pid namespace than this process; false also if the kernel does not say. */
bool identity_is_in_other_namespace(int32_t pid);

/* Whether a later process has the pid now. */
bool identity_is_reused(int32_t pid, uint64_t start_time);

/* Whether the process has the mount namespace of this process; true also if the kernel does not say. */
bool identity_shares_our_mounts(int32_t pid);

/* The image that the process runs now. */
struct image identity_image(int32_t pid);
/* False also if one of them is unknown. */
bool identity_is_other_image(const struct image *one, const struct image *other);

/* Reads a file of /proc/PID into `out`, which ends with 0. Its length, or -errno. */
ssize_t identity_read_file(int32_t pid, const char *file, char *out, size_t size);

/* The process's name as the kernel has it, which may contain any bytes; "?" if it is gone. */
void identity_name(int32_t pid, char name[PROCESS_NAME_SIZE]);

#endif
