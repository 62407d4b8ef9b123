/* A program whose threads use the environment while the driver starts. Its argument is `read`,
 * `setenv` or `add`: what it does besides. It prints what it found as JSON. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static void *start(void *driver)
{
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	return (void *)(long)init(0);
}
int main(int count, char **arguments)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *result;
	pthread_t thread;
	if (count == 2 && strcmp(arguments[1], "setenv") == 0)
		setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	setenv("CHANGED", "1", 1);
	char **list = environ; /* a thread inside getenv reads this list */
	unsigned size = 0;
	while (list[size])
		size++;
	char **copy = malloc(size * sizeof(*copy));
	memcpy(copy, list, size * sizeof(*copy));
	void *behind = malloc(64);
	pthread_create(&thread, NULL, start, driver);
	while (access(getenv("TEST_INSIDE"), F_OK) != 0)
		usleep(1000);
	setenv("CHANGED", "2", 1);
	if (count == 2 && strcmp(arguments[1], "add") == 0)
		setenv("ADDED", "3", 1);
	for (int i = 0; i < 1000; i++) /* what was freed is used again */
		memset(malloc(size * sizeof(*list)), 0x55, size * sizeof(*list));
	fclose(fopen(getenv("TEST_GO_ON"), "w"));
	pthread_join(thread, &result);
	unsigned moved = 0;
	for (unsigned i = 0; i < size; i++)
		moved += list[i] != copy[i] && strncmp(copy[i], "CHANGED=", 8) != 0 &&
		         strncmp(copy[i], "CUDA_VISIBLE_DEVICES=", 21) != 0;
	const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *added = getenv("ADDED");
	printf("{\"result\": %ld, \"moved\": %u, \"changed\": %s, \"added\": %s, ", (long)result, moved,
	       getenv("CHANGED"), added ? added : "0");
	printf("\"visible\": \"%s\", \"path\": %d}\n", visible ? visible : "", getenv("PATH") != NULL);
	free(behind);
	return 0;
}
