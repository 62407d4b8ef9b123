/* aliquot-mover: copies the memory of programs between one GPU and the host (aliquot/move.h).
 *
 * The arbiter's parent starts one for each GPU when there is an order for it (aliquot/arena.h). It ends
 * with that parent, and by itself when the arbiter wants no memory of the host for this GPU and no
 * program has a copy here.
 */
#include "aliquot/arena.h"
#include "aliquot/descriptors.h"
#include "aliquot/uuid.h"
#include "connection.h"
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define IDLE_LOOKS 4 /* after which it looks for dead processes, and whether anybody needs it */

struct mover {
	struct aliquot_arena *page;
	struct gpu gpu;
	struct host_memory memory;
	struct arena arena;
	struct connections connections;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool look; /* with the lock: the size that the arena should have may be another */
};

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "aliquot-mover: %s: %s\n", what, why);
	return 1;
}

/* Grows the arena ahead of need, and gives back what is not wanted any more or others need. */
static void *keep_warm(void *argument)
{
	struct mover *mover = argument;
	struct fault fault;
	watch_enter();
	for (;;) {
		uint64_t bytes, wanted, lacked;
		watch_rest();
		pthread_mutex_lock(&mover->lock);
		while (!mover->look)
			pthread_cond_wait(&mover->changed, &mover->lock);
		mover->look = false;
		pthread_mutex_unlock(&mover->lock);
		watch_work();
		host_memory_register(&mover->memory, 0, atomic_load(&mover->memory.bytes));
		do {
			bytes = atomic_load(&mover->memory.bytes);
			wanted = atomic_load(&mover->page->wanted_bytes);
			lacked = host_memory_lacked_by_others(&mover->memory);
		} while (!lacked && bytes < wanted && host_memory_grow(&mover->memory, bytes, &fault));
		if (lacked)
			arena_give_back(&mover->arena, lacked);
		if (wanted < bytes)
			arena_shrink(&mover->arena, wanted);
	}
	return NULL;
}

static void look(struct mover *mover)
{
	pthread_mutex_lock(&mover->lock);
	mover->look = true;
	pthread_cond_signal(&mover->changed);
	pthread_mutex_unlock(&mover->lock);
}

static void obey(struct mover *mover, const struct aliquot_order *order, int fd)
{
	struct owner owner = {order->pid, order->start_time, order->grant};
	bool known = order->magic == ALIQUOT_ORDER_MAGIC && order->version == ALIQUOT_ARENA_VERSION;
	if (known && order->kind == ALIQUOT_ORDER_SERVE && fd >= 0) {
		connections_add(&mover->connections, fd, &owner, order->bytes);
		return;
	}
	if (known && order->kind == ALIQUOT_ORDER_FORGET)
		connections_forget(&mover->connections, order->pid, order->start_time);
	else if (known && order->kind == ALIQUOT_ORDER_LOOK)
		look(mover);
	if (fd >= 0)
		close(fd);
}

/* Reads one order and carries it out. False: nobody can send more. */
static bool read_order(struct mover *mover)
{
	struct aliquot_order order;
	int fd;
	bool wrong;
	ssize_t size = aliquot_receive_descriptor(ALIQUOT_MOVER_ORDERS, &order, sizeof(order), &fd,
	                                          &wrong, MSG_DONTWAIT);
	if (size <= 0)
		return size < 0 && (errno == EAGAIN || errno == EINTR);
	if (size == (ssize_t)sizeof(order) && !wrong)
		obey(mover, &order, fd);
	else if (fd >= 0)
		close(fd);
	return true;
}

/* An order that comes now starts the next mover. */
static bool is_of_no_use(struct mover *mover)
{
	return !atomic_load(&mover->page->wanted_bytes) && !connections_count(&mover->connections) &&
	       arena_is_empty(&mover->arena);
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int run(struct mover *mover)
{
	uint64_t look_at = 0;
	for (unsigned idle_looks = 0;;) {
		struct pollfd poller = {.fd = ALIQUOT_MOVER_ORDERS, .events = POLLIN};
		uint64_t now = now_ms();
		if (now >= look_at) {
			look_at = now + WATCH_LOOK_MS;
			idle_looks++;
			watch_look();
			if (host_memory_lacked_by_others(&mover->memory))
				look(mover);
		}
		int ready = poll(&poller, 1, (int)(look_at - now));
		if (ready > 0 && !read_order(mover))
			return 0;
		if (ready)
			idle_looks = 0;
		if (idle_looks < IDLE_LOOKS)
			continue;
		idle_looks = 0;
		if (!arena_is_empty(&mover->arena))
			arena_forget_dead(&mover->arena);
		if (is_of_no_use(mover)) {
			arena_shrink(&mover->arena, 0);
			return 0;
		}
	}
}

/* The arenas, or NULL. */
static struct aliquot_arena *map_arenas(void)
{
	size_t size = ALIQUOT_MOVERS * sizeof(struct aliquot_arena);
	struct stat status;
	if (fstat(ALIQUOT_MOVER_ARENAS, &status) || (uint64_t)status.st_size < size)
		return NULL;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ALIQUOT_MOVER_ARENAS, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void prepare_process(void)
{
	struct rlimit files;
	prctl(PR_SET_NAME, "aliquot-mover");
	signal(SIGPIPE, SIG_IGN);
	unsetenv("CUDA_VISIBLE_DEVICES"); /* the GPU is found by its UUID */
	unsetenv("CUDA_LAUNCH_BLOCKING");
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

int main(int argc, char **argv)
{
	static struct mover mover;
	uint8_t uuid[16];
	pthread_t thread;
	struct fault fault;
	if (argc != 5 || !aliquot_uuid_parse(argv[2], strlen(argv[2]), uuid))
		return fail("usage", "aliquot-mover LIBCUDA GPU NUMBER BYTES; the arbiter starts it");
	unsigned long number = strtoul(argv[3], NULL, 10);
	prepare_process();
	struct aliquot_arena *arenas = map_arenas();
	if (!arenas || number >= ALIQUOT_MOVERS)
		return fail("no arenas", strerror(errno));
	mover.page = &arenas[number];
	if (mover.page->magic != ALIQUOT_ARENA_MAGIC || mover.page->version != ALIQUOT_ARENA_VERSION)
		return fail("the arena", "it is of another version");
	watch_open(mover.page, aliquot_mover_patience());
	gpu_init(&mover.gpu, argv[1], uuid, ALIQUOT_MOVER_DATA);
	gpu_is_ready(&mover.gpu, &fault);
	if (!host_memory_open(&mover.memory, &mover.gpu, arenas, (unsigned)number, ALIQUOT_MOVER_ARENAS,
	                      ALIQUOT_MOVER_DATA, strtoull(argv[4], NULL, 10)) ||
	    !arena_open(&mover.arena, &mover.memory))
		return fail("the arena cannot be mapped", strerror(errno));
	arena_forget_dead(&mover.arena);
	atomic_store(&mover.page->connection_count, 0);
	const char *checks = getenv("ALIQUOT_MOVE_CHECKSUMS");
	connections_init(&mover.connections, &mover.gpu, &mover.arena, checks && *checks == '1');
	pthread_mutex_init(&mover.lock, NULL);
	pthread_cond_init(&mover.changed, NULL);
	if (pthread_create(&thread, NULL, keep_warm, &mover))
		return fail("no thread", strerror(errno));
	look(&mover);
	return run(&mover);
}
