/* One grant as the arbiter has it in memory, and what every other part may ask of it.
 *
 * A grant is a directory (state.h) with two pages, a socket and its processes. Its owner is the
 * process that asked for it. The grant ends when the owner is dead and none of its processes is
 * live or ending.
 *
 * The truth about a grant is its record, a file that only the arbiter can open (private_directory.h).
 * The page `limits` is a view of it for tenants: grant_publish writes it, and nothing here reads it.
 * So whatever a tenant does to the view, only the tenant itself believes it.
 *
 * A kept grant has no owner. It belongs to a container in which programs come and go, and it stays
 * until somebody ends it. From then on no process can join it, and it ends with its last process. The
 * maker may name the container's first process: its death ends the grant, as the kernel reports it.
 * Processes of the container may join it, whatever their uid (tenants.h). Root may also keep a grant for
 * an ordinary user: for a job of that user, whose processes come and go. Only that user and root join it.
 *
 * A grant belongs to the user who made it, and names are per user: two users may each have a grant
 * named `train`. The directory of a grant of the arbiter's own user has the grant's name. That of
 * another user's is "UID:" and 16 random hexadecimal digits, so that nobody can find out by trying
 * which names another user has.
 *
 * A grant is active, switching or parked (enum aliquot_grant_state). The record stores that state, so
 * it outlives the arbiter. The slices of a parked grant count for nothing, and no process can join. What a
 * swappable grant leaves on its GPU counts (residence.h).
 *
 * A grant whose files fail their check is broken. No process can join it, its own processes are left
 * alone, and its memory stays counted if the record can be read.
 *
 * This file makes and ends no grant: grants.h does.
 */
#ifndef ARBITER_GRANT_H
#define ARBITER_GRANT_H

#include "aliquot/layout.h"
#include "arbiter.h"
#include "cgroup.h"
#include "mapping.h"
#include "neighbours.h"

struct process;

/* What the log has reported of the grant (findings.h). */
struct findings {
	uint64_t fallbacks[ALIQUOT_MAX_GPUS], exemptions[ALIQUOT_MAX_GPUS];
	uint64_t fallback_at;
};

enum parking_step { PARKING_NONE, PARKING_LEAVING, PARKING_AWAY, PARKING_RETURNING };

/* When and how often the grant is parked because it is idle (parking.h). */
struct parked {
	uint64_t after_ms; /* 0: never */
	uint64_t step;     /* enum parking_step */
	uint64_t times, parked_ns;
	uint64_t since_ns;  /* CLOCK_MONOTONIC: of the present parking */
	uint64_t if_wanted; /* 1: only when somebody wants its memory */
};

/* Its turns with memory (rotation.h). */
struct memory_turn_record {
	uint64_t takes;        /* 1: it takes turns */
	uint64_t wait_ms;      /* it shall not be off its GPU for longer; 0: the usual time */
	uint64_t is_others;    /* 1: it leaves, is away or returns because others had their turn */
	uint64_t off_since_ns; /* CLOCK_MONOTONIC: since when its calls wait for its turn */
	uint64_t times, off_ns, longest_off_ns;
};

/* What this arbiter knows of it. */
struct parking {
	uint64_t since;            /* the step, or the newest progress in it */
	uint64_t away_bytes;       /* of its programs, at the last look */
	uint64_t calls, called_at; /* calls that use memory, and when their number last changed */
	uint64_t settled_at;       /* when its last process was seen to have left; 0: not yet */
	uint64_t wanted_at;        /* since when a program waits for it; 0: none does */
	uint64_t not_before;       /* it is not parked again before that */
	uint64_t due_since;        /* since when it may be parked; 0: it may not */
	bool joins;                /* a program wants to join it */
	/* Of its turns with memory: */
	uint64_t begun_at;               /* when its memory began to leave or return */
	uint64_t out_ns, in_ns;          /* how long that took the last time */
	uint64_t on_since;               /* since when all of it is on its GPU; 0: not known */
	uint64_t refuses_until;          /* it could not leave */
	uint64_t failed_at;              /* when it last could not, unless only NVML was silent */
	uint32_t failures, own_failures; /* in a row; of these, for reasons of its own */
	bool is_unswappable;             /* the last one was for managed memory */
	bool was_contended; /* others had GPU work while it was to leave, or not all is seen */
	uint64_t backlog, drained_at;      /* its GPU work then, and when that last became less */
	uint64_t blocked_since;            /* memory_turns.h: blocked; 0: it is not */
	uint64_t unanswered_since;         /* the same, and no program of the GPU was dying */
	uint64_t least_bytes, least_until; /* what stayed when all had left that can */
	double served;                     /* time on the GPU for its weight */
	bool was_busy;                     /* at the last look */
	char why[256];                     /* why it was not parked or does not return; may be empty */
};

/* The record of a grant, as its file has it. Its first part is what tenants see of it. New fields are added
 * at the end, and zero must mean what was so before: then the version (state.h) stays. */
struct grant_record {
	struct aliquot_limits limits;
	char together[ALIQUOT_NAME_SIZE]; /* grants of one owner with the same name hold GPUs together;
	                                     empty: this grant holds its GPUs by itself */
	struct neighbours neighbours;
	uint64_t staying_bytes; /* on the GPU while the grant is parked: residence.h */
	struct parked parked;
	struct memory_turn_record turn;
	uint64_t mps;                /* 1: its programs are clients of an MPS server (mps.h) */
	uint64_t overcommit_percent; /* overcommit.h; 0: as the arbiter allows */
};

/* "UID:NAME" */
#define GRANT_NAME_SIZE (ALIQUOT_NAME_SIZE + 11u)

struct grant {
	struct arbiter *arbiter;
	struct grant *next;
	/* For the log and for root: "NAME", or "UID:NAME" if it is not of the arbiter's own user. If the
	 * record cannot be read, the name of its directory. */
	char name[GRANT_NAME_SIZE];
	uint32_t owner_uid;
	enum state_folder folder;
	char directory[ALIQUOT_NAME_SIZE]; /* in that folder, and in the private directory */
	struct mapping record_mapping, view_mapping, usage_mapping;
	struct grant_record *record;   /* NULL: cannot be read */
	struct aliquot_limits *limits; /* of the record; NULL: cannot be read */
	struct aliquot_limits *view;   /* `limits` as tenants see it: written, never read */
	struct aliquot_usage *usage;   /* NULL: cannot be trusted */
	int limits_fd, usage_fd;       /* for tenants: read-only, read-write */
	int records, pages;            /* its private directories */
	uint32_t last_pages;           /* the highest number that pages of it have had */
	uint32_t slice_count;
	struct gpu *gpus[ALIQUOT_MAX_GPUS]; /* NULL: the machine no longer has this GPU */
	struct watch listener;
	unsigned connection_count;
	struct budget budget; /* what its programs have taken of the main thread's time (callers.h) */
	struct timer pause;   /* until it fires, messages of its programs are not read */
	struct watch owner;   /* a pidfd: its owner's, or of its container's first process; -1: dead */
	struct process *processes[ALIQUOT_MAX_PROCESSES]; /* by slot */
	uint32_t process_end;                             /* one past the last used slot */
	uint32_t process_count;
	/* Called after processes have left; may end the grant and free it. */
	void (*processes_left)(struct grant *grant);
	struct credit_grant *credit; /* its slices as contenders; NULL: the record cannot be read */
	struct findings findings;
	/* unjoined.h's: the grant's cgroup, or empty; whether somebody told it, and it was visible then;
	 * whether other grants have processes there, so that it is not learned; and what processes there
	 * that have not joined use. */
	char cgroup[CGROUP_PATH_SIZE];
	bool cgroup_is_told, cgroup_was_visible, cgroup_is_shared;
	uint64_t unjoined_bytes[ALIQUOT_MAX_GPUS];
	struct parking parking;
	uint64_t most_charged; /* movers.h's: the most that its programs were charged at a time */
	char broken[160];      /* why it is broken; empty: it is not */
	/* While it is made: whether it takes turns with memory, and waits for its first. */
	bool takes_turns, starts_off;
};

/* Whether it is parked because others have their turn (rotation.h): its programs run and wait for it, so its slice
 * counts as one that is used. */
bool grant_is_off(const struct grant *grant);

/* Whether it is parked and what it has given back is kept for it: a program waits for that (parking.h). */
bool grant_keeps_room(const struct grant *grant);

/* That user's grant of that name, or NULL. */
struct grant *grant_find(struct arbiter *arbiter, uint32_t owner_uid, const char *name);

/* Sets owner and name. */
void grant_set_name(struct grant *grant, uint32_t owner_uid, const char *name);
/* The name that its owner gave it. */
const char *grant_plain_name(const struct grant *grant);
/* How that user names it in a request: plainly if it is the user's own. */
const char *grant_name_for(const struct grant *grant, uint32_t uid);
/* The owner that the name of a directory says. */
uint32_t grant_directory_owner(const char *directory);

#define GRANT_PATH_SIZE (PATH_MAX + ALIQUOT_NAME_SIZE + 16)
void grant_path(const struct grant *grant, char out[GRANT_PATH_SIZE]);

/* Whether the grant has an owner, is kept, or was kept. OWNED if the record cannot be read. */
enum aliquot_life grant_life(const struct grant *grant);

/* Whether it is kept for a container: it is not the grant of an ordinary user. */
bool grant_is_for_container(const struct grant *grant);

/* ACTIVE if the record cannot be read: its slices then still count. */
enum aliquot_grant_state grant_state(const struct grant *grant);

/* The number of the slice's GPU in the machine; the machine has that GPU. */
static inline unsigned grant_gpu_number(const struct grant *grant, uint32_t slice)
{
	return (unsigned)(grant->gpus[slice] - grant->arbiter->nvml.gpus);
}

/* Checks the pages that tenants can write; false: the grant is broken. */
bool grant_check(struct grant *grant);

/* Shows tenants what the record says of the grant and of one of its slots; GRANT_NO_SLOT: of none. Call
 * it after each change of the record. */
#define GRANT_NO_SLOT UINT32_MAX
void grant_publish(struct grant *grant, uint32_t slot);
/* The same for all slots. */
void grant_publish_all(struct grant *grant);

/* Marks the grant as broken for good; the first reason is kept. `part` names the file. */
void grant_break(struct grant *grant, const char *part, const char *why);

#endif
