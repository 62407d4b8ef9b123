/* The thread that moves memory, with pieces, a mover and an arbiter's word of the test's own.
 *
 * A piece is an array of plain words that the program's threads change inside calls, and that the mover copies and
 * wipes: so a sanitizer sees if a call is ever inside while memory is away. */
#define _GNU_SOURCE
#include "aliquot/move.h"
#include "arbiter_call.h"
#include "gate/gate.h"
#include "session.h"
#include "swap/residence.h"
#include "swap/swappable.h"

#include "../check.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 40, CALLERS = 8, ROUNDS = 60 };

struct content {
	uint64_t words[CALLERS];
};

/* The memory on the GPU, and the mover's copies. */
static struct content pieces[PIECES], copies[PIECES];
static bool is_here[PIECES], has_copy[PIECES];
static _Atomic unsigned piece_count = PIECES;

/* What goes wrong. */
static _Atomic unsigned requests, die_every, refusals_to_come, full_to_come;
static _Atomic int movers_missing, captures;
static _Atomic bool drain_hangs, is_managed;
static _Atomic unsigned hangs_at; /* the mover does not answer after so many requests; 0: it does */
static _Atomic unsigned drains;
static uint64_t calls_before_drain;
static uint64_t all_calls(void);

static struct aliquot_limits limits = {.slice_count = 1, .slices = {{.swap = 1}}};
static struct aliquot_work_slice work;

/* --- what the thread calls ---------------------------------------------------------------------- */

const struct aliquot_limits *session_limits(void)
{
	return &limits;
}

struct aliquot_work_slice *session_work(void)
{
	return &work;
}

uint32_t session_ties(void)
{
	return is_managed ? ALIQUOT_TIE_MANAGED : 0;
}

void arbiter_ring(void)
{
}

void *session_wiped_memory(void *_Atomic *where, size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && madvise(memory, size, MADV_WIPEONFORK) == 0);
	atomic_store(where, memory);
	return memory;
}

void forward_say(const char *format, ...)
{
	CHECK(!format);
}

bool gates_have_captures(void)
{
	return captures > 0;
}

CUstreamCaptureMode gate_relax_capture_mode(void)
{
	return CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static void moment(void)
{
	struct timespec time = {.tv_nsec = 100 * 1000};
	nanosleep(&time, NULL);
}

void gates_drain(void)
{
	calls_before_drain = all_calls();
	drains++;
	while (drain_hangs)
		moment();
}

/* A sanitizer does not know that a message orders what two threads do: this lock tells it. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

static void order_threads(void)
{
	pthread_mutex_lock(&order);
	pthread_mutex_unlock(&order);
}

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
	ssize_t received = recvfrom(fd, bytes, size, flags, NULL, NULL);
	order_threads();
	return received;
}

/* The program's context is current for the thread while memory is away, and no longer. */
static bool has_context;

void gates_borrow_context(void)
{
	has_context = true;
}

void gates_return_context(void)
{
	CHECK(has_context);
	has_context = false;
}

bool swappable_is_on(void)
{
	return limits.slices[0].swap == 1;
}

static unsigned index_of(CUdeviceptr address)
{
	CHECK(address % 4096 == 0 && address >= 4096 && address / 4096 <= PIECES);
	return (unsigned)(address / 4096 - 1);
}

size_t swappable_pieces(size_t from, struct swappable_piece *out, size_t most)
{
	size_t count = 0;
	for (; from + count < piece_count && count < most; count++)
		out[count] = (struct swappable_piece){(from + count + 1) * 4096, sizeof(struct content)};
	return count;
}

/* Descriptors that the thread has open while it moves. */
static _Atomic int first_exported, connection;

CUresult swappable_export(CUdeviceptr address, int *descriptor)
{
	CHECK(is_here[index_of(address)]);
	order_threads();
	*descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (first_exported < 0)
		first_exported = *descriptor;
	return CUDA_SUCCESS;
}

CUresult swappable_take_away(CUdeviceptr address)
{
	unsigned i = index_of(address);
	CHECK(has_context && is_here[i] && has_copy[i]);
	CHECK(all_calls() == calls_before_drain); /* nothing was begun since the GPU was waited for */
	is_here[i] = false;
	memset(&pieces[i], 0xee, sizeof(pieces[i]));
	return CUDA_SUCCESS;
}

static bool take_one(_Atomic unsigned *count)
{
	unsigned left = *count;
	while (left > 0 && !atomic_compare_exchange_weak(count, &left, left - 1))
		;
	return left > 0;
}

CUresult swappable_bring_back(CUdeviceptr address, int *descriptor)
{
	CHECK(has_context && !is_here[index_of(address)]);
	if (take_one(&full_to_come))
		return CUDA_ERROR_OUT_OF_MEMORY;
	is_here[index_of(address)] = true;
	return swappable_export(address, descriptor);
}

/* --- the mover ---------------------------------------------------------------------------------- */

static void receive(int fd, struct aliquot_move *request, ssize_t *size)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = request, .iov_len = sizeof(*request)};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = &control,
	                         .msg_controllen = sizeof(control)};
	*size = recvmsg(fd, &message, 0);
	struct cmsghdr *header = *size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (header) {
		int carried;
		memcpy(&carried, CMSG_DATA(header), sizeof(carried));
		CHECK(close(carried) == 0);
	}
	CHECK(*size <= 0 || (header != NULL) == (request->kind != ALIQUOT_MOVE_FORGET));
}

static void copy(struct aliquot_move *message)
{
	unsigned i = index_of(message->piece);
	CHECK(message->bytes == sizeof(struct content) && is_here[i]);
	if (message->kind == ALIQUOT_MOVE_OUT) {
		copies[i] = pieces[i];
		has_copy[i] = true;
	} else {
		CHECK(has_copy[i]);
		pieces[i] = copies[i];
	}
}

/* One connection. Every `die_every`-th request kills the mover, before its work or after it. */
static void *serve(void *socket)
{
	int fd = (int)(intptr_t)socket;
	for (;;) {
		struct aliquot_move message;
		ssize_t size;
		receive(fd, &message, &size);
		if (size != sizeof(message))
			break;
		unsigned number = atomic_fetch_add(&requests, 1) + 1, every = die_every;
		if (hangs_at && number >= hangs_at) {
			while (hangs_at)
				moment();
			break; /* killed at last */
		}
		if (every && number % every == 0 && number % 2)
			break;
		pthread_mutex_lock(&order);
		bool refused = message.kind == ALIQUOT_MOVE_OUT && take_one(&refusals_to_come);
		if (message.kind == ALIQUOT_MOVE_FORGET)
			memset(has_copy, 0, sizeof(has_copy));
		else if (!refused)
			copy(&message);
		pthread_mutex_unlock(&order);
		if (every && number % every == 0)
			break;
		message.kind = refused ? ALIQUOT_MOVE_FAILED : ALIQUOT_MOVE_DONE;
		message.failure = refused ? ALIQUOT_MOVE_HOST_FULL : 0;
		if (send(fd, &message, sizeof(message), MSG_NOSIGNAL) != sizeof(message))
			break;
	}
	close(fd);
	return NULL;
}

int arbiter_mover(int patience_ms)
{
	int ends[2];
	pthread_t thread;
	(void)patience_ms;
	if (movers_missing)
		return -1;
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	CHECK(pthread_create(&thread, NULL, serve, (void *)(intptr_t)ends[1]) == 0);
	pthread_detach(thread);
	connection = ends[0];
	return ends[0];
}

/* --- the arbiter -------------------------------------------------------------------------------- */

static uint32_t ask(bool on_host)
{
	_Atomic uint32_t *word = &limits.slices[0].residence;
	uint32_t next = ((*word >> 1) + 1) << 1 | (on_host ? ALIQUOT_ON_HOST : 0);
	atomic_store(word, next);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return next;
}

static void wait_for(uint32_t word)
{
	while (atomic_load(&work.residence) != word)
		moment();
}

/* --- the program -------------------------------------------------------------------------------- */

static _Atomic bool over;
static _Atomic uint64_t calls[CALLERS];

static void one_call(unsigned caller)
{
	struct residence_call call = residence_enter();
	CHECK(call.is_inside);
	for (unsigned i = 0; i < PIECES; i++) {
		CHECK(is_here[i]);
		pieces[i].words[caller]++;
	}
	calls[caller]++;
	residence_leave(call);
}

static void *use_memory(void *number)
{
	while (!over)
		one_call((unsigned)(uintptr_t)number);
	return NULL;
}

static uint64_t all_calls(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < CALLERS; i++)
		sum += calls[i];
	return sum;
}

static void wait_for_calls(uint64_t more)
{
	for (uint64_t until = all_calls() + more; all_calls() < until;)
		moment();
}

/* No call returns while memory is away: look several times. */
static void check_held(void)
{
	uint64_t before = all_calls();
	for (unsigned i = 0; i < 50; i++)
		moment();
	CHECK(all_calls() == before);
}

static void check_content(void)
{
	for (unsigned i = 0; i < PIECES; i++)
		for (unsigned caller = 0; caller < CALLERS; caller++)
			CHECK(pieces[i].words[caller] == calls[caller]);
}

/* --- the tests ---------------------------------------------------------------------------------- */

static void test_calls_wait_while_memory_is_away(void)
{
	wait_for_calls(10);
	wait_for(ask(true));
	CHECK(work.away_bytes == sizeof(pieces) && work.move_failed == 0);
	check_held();
	wait_for(ask(false));
	CHECK(work.away_bytes == 0 && work.move_failed == 0);
	wait_for_calls(10);
}

static void ask_for_part(unsigned leaving)
{
	atomic_store(&limits.slices[0].leave_parts, ALIQUOT_LEAVE_WHOLE / PIECES * leaving + 1);
}

static void test_a_part_leaves_and_then_more(void)
{
	wait_for_calls(10);
	ask_for_part(10);
	uint32_t first = ask(true);
	wait_for(first);
	CHECK(work.away_bytes == 10 * sizeof(pieces[0]) && work.move_failed == 0);
	check_held();
	CHECK(work.wanted == first);
	ask_for_part(25);
	uint32_t second = ask(true);
	wait_for(second);
	CHECK(work.away_bytes == 25 * sizeof(pieces[0]));
	CHECK(work.wanted == second); /* the calls that wait are not forgotten */
	check_held();
	ask_for_part(0); /* of what is away nothing returns before all does */
	wait_for(ask(true));
	CHECK(work.away_bytes == 25 * sizeof(pieces[0]));
	wait_for(ask(false));
	CHECK(work.away_bytes == 0);
	wait_for_calls(10);
	ask_for_part(0);
	wait_for(ask(true));
	CHECK(work.away_bytes == 0 && work.move_failed == 0);
	check_held(); /* though all is there */
	wait_for(ask(false));
	atomic_store(&limits.slices[0].leave_parts, 0);
	wait_for_calls(10);
}

static void test_moves_that_are_called_off_at_any_time(void)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		ask(true);
		for (unsigned k = 0; k < i % 7; k++)
			moment();
		ask(i % 5 == 0);
		wait_for_calls(i % 5 == 0 ? 0 : 10);
	}
	wait_for(ask(false));
}

static void test_movers_that_die(void)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		die_every = 7 + i % 13;
		wait_for(ask(true));
		wait_for(ask(false));
		CHECK(work.away_bytes == 0);
	}
	die_every = 0;
}

static void test_a_move_that_fails_brings_everything_back(void)
{
	refusals_to_come = 3;
	uint32_t word = ask(true);
	wait_for(word);
	CHECK(work.move_failed == ALIQUOT_MOVE_HOST_FULL && work.away_bytes == 0);
	wait_for_calls(10); /* though the word says HOST */
	refusals_to_come = 0;
	wait_for(ask(false));
	CHECK(work.move_failed == 0);
}

static void test_memory_waits_for_room_on_the_gpu(void)
{
	wait_for(ask(true));
	full_to_come = 2;
	uint32_t word = ask(false);
	while (work.move_failed != ALIQUOT_MOVE_GPU_FULL && work.residence != word)
		moment();
	wait_for(word);
	CHECK(full_to_come == 0 && work.move_failed == 0);
	wait_for_calls(10);
}

static void test_memory_waits_for_a_mover(void)
{
	wait_for(ask(true));
	movers_missing = true;
	uint32_t word = ask(false);
	while (work.move_failed != ALIQUOT_MOVE_NO_MOVER)
		moment();
	CHECK(work.residence != word);
	check_held();
	movers_missing = false;
	wait_for(word);
}

static void test_a_move_out_without_a_mover_fails(void)
{
	movers_missing = true;
	wait_for(ask(true));
	CHECK(work.move_failed == ALIQUOT_MOVE_NO_MOVER && work.away_bytes == 0);
	wait_for_calls(10);
	movers_missing = false;
	wait_for(ask(false));
}

/* The first piece leaves, and the mover hangs with others. */
static uint32_t leave_with_a_mover_that_hangs(unsigned after)
{
	hangs_at = requests + 1 + after;
	uint32_t word = ask(true);
	while (requests < hangs_at)
		moment();
	return word;
}

static void test_a_move_with_a_mover_that_hangs_can_be_called_off(void)
{
	leave_with_a_mover_that_hangs(0);
	check_held();
	uint32_t word = ask(false);
	wait_for_calls(100); /* nothing had left */
	wait_for(word);
	CHECK(work.move_failed == 0 && work.away_bytes == 0);
	hangs_at = 0;
	wait_for(ask(true));
	CHECK(work.move_failed == 0);
	wait_for(ask(false));
}

static void test_what_a_mover_that_hangs_has_comes_back_from_the_next(void)
{
	leave_with_a_mover_that_hangs(3);
	uint32_t word = ask(false);
	check_held();
	hangs_at = 0;
	wait_for(word);
	CHECK(work.move_failed == 0 && work.away_bytes == 0);
	wait_for_calls(10);
}

static void test_a_program_that_does_not_get_quiet_is_not_held_for_long(void)
{
	unsigned before = drains;
	drain_hangs = true;
	uint32_t word = ask(true);
	while (drains == before)
		moment();
	check_held();
	wait_for_calls(100); /* though nobody calls the move off */
	CHECK(work.residence != word);
	drain_hangs = false;
	wait_for(word);
	CHECK(work.move_failed == ALIQUOT_MOVE_BUSY && work.away_bytes == 0);
	wait_for_calls(10);
	wait_for(ask(false));
}

static void test_a_call_that_does_not_return_fails_a_move(void)
{
	struct residence_call call = residence_enter();
	wait_for(ask(true));
	CHECK(work.move_failed == ALIQUOT_MOVE_BUSY && work.away_bytes == 0);
	residence_leave(call);
	wait_for(ask(true));
	CHECK(work.move_failed == 0);
	wait_for(ask(false));
}

static void test_a_program_that_captures_goes_on_until_it_does_not(void)
{
	captures = 1;
	uint32_t before = work.residence, word = ask(true);
	wait_for_calls(1000);
	CHECK(work.residence == before);
	captures = 0;
	wait_for(word);
	CHECK(work.away_bytes == sizeof(pieces));
	wait_for(ask(false));
}

static void test_calls_pass_again_though_the_gpu_never_gets_done(void)
{
	unsigned before = drains;
	drain_hangs = true;
	ask(true);
	while (drains == before)
		moment();
	check_held();
	uint32_t word = ask(false);
	wait_for_calls(100);
	CHECK(work.residence != word);
	drain_hangs = false;
	wait_for(word);
}

static void test_work_begun_while_the_gpu_was_waited_for_is_waited_for_too(void)
{
	unsigned before = drains;
	drain_hangs = true;
	ask(true);
	while (drains == before)
		moment();
	ask(false);
	wait_for_calls(100);
	uint32_t word = ask(true);
	do
		moment();
	while (!residence_is_empty(&(uint64_t){0}));
	drain_hangs = false;
	wait_for(word);
	CHECK(work.away_bytes == sizeof(pieces));
	wait_for(ask(false));
}

static void test_managed_memory_does_not_leave(void)
{
	is_managed = true;
	wait_for(ask(true));
	CHECK(work.move_failed == ALIQUOT_MOVE_UNSWAPPABLE && work.away_bytes == 0);
	wait_for_calls(10);
	is_managed = false;
	wait_for(ask(false));
}

/* Whether a fork wipes memory: an emulator of another processor may not. */
static bool forks_wipe(void)
{
	static void *_Atomic page;
	int status;
	char *memory = session_wiped_memory(&page, 4096);
	*memory = 1;
	pid_t child = fork();
	if (child == 0)
		_exit(*memory);
	CHECK(waitpid(child, &status, 0) == child);
	return status == 0;
}

static void test_a_forked_child_has_no_barrier(void)
{
	if (!forks_wipe()) {
		puts("left out: a fork wipes no memory here");
		return;
	}
	wait_for(ask(true));
	pid_t child = fork();
	if (child == 0) {
		struct residence_call call = residence_enter();
		residence_leave(call);
		_exit(call.is_inside);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	wait_for(ask(false));
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void test_a_forked_child_has_none_of_the_descriptors(void)
{
	int status;
	first_exported = -1;
	leave_with_a_mover_that_hangs(3);
	CHECK(is_open(first_exported) && is_open(connection));
	pid_t child = fork();
	if (child == 0)
		_exit(is_open(first_exported) || is_open(connection));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	hangs_at = 0;
	wait_for(ask(false));
}

/* It joins the grant anew, with memory of its own that is on the GPU. */
static void live_in_child(void)
{
	memset(is_here, 1, sizeof(is_here));
	has_context = false;
	work.residence = 0;
	residence_start();
	wait_for(limits.slices[0].residence);
	CHECK(work.away_bytes == sizeof(pieces));
	wait_for(ask(false));
	CHECK(work.away_bytes == 0);
	_exit(0);
}

static void test_a_forked_child_can_move_its_own_memory(void)
{
	int status;
#ifdef __SANITIZE_THREAD__
	return; /* it allows such a child no threads */
#endif
	wait_for(ask(true));
	pid_t child = fork();
	if (child == 0)
		live_in_child();
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	wait_for(ask(false));
}

int main(void)
{
	pthread_t callers[CALLERS];
	memset(is_here, 1, sizeof(is_here));
	struct residence_call call = residence_enter();
	CHECK(!call.is_inside);
	residence_start();
	residence_leave(call);
	for (uintptr_t i = 0; i < CALLERS; i++)
		CHECK(pthread_create(&callers[i], NULL, use_memory, (void *)i) == 0);
	test_calls_wait_while_memory_is_away();
	test_a_part_leaves_and_then_more();
	test_moves_that_are_called_off_at_any_time();
	test_movers_that_die();
	test_a_move_that_fails_brings_everything_back();
	test_memory_waits_for_room_on_the_gpu();
	test_memory_waits_for_a_mover();
	test_a_move_out_without_a_mover_fails();
	test_a_move_with_a_mover_that_hangs_can_be_called_off();
	test_what_a_mover_that_hangs_has_comes_back_from_the_next();
	test_a_program_that_does_not_get_quiet_is_not_held_for_long();
	test_a_call_that_does_not_return_fails_a_move();
	test_a_program_that_captures_goes_on_until_it_does_not();
	test_calls_pass_again_though_the_gpu_never_gets_done();
	test_work_begun_while_the_gpu_was_waited_for_is_waited_for_too();
	test_managed_memory_does_not_leave();
	test_a_forked_child_has_no_barrier();
	test_a_forked_child_has_none_of_the_descriptors();
	test_a_forked_child_can_move_its_own_memory();
	over = true;
	for (unsigned i = 0; i < CALLERS; i++)
		CHECK(pthread_join(callers[i], NULL) == 0);
	check_content();
	wait_for(ask(true));
	return 0; /* while the memory is away */
}
