/* A fuzzer's main without libFuzzer: every file of the corpus as it is, and then mutations of it
 * from a fixed seed, so that a run is the same everywhere.
 *
 *   FUZZER CORPUS-FOLDER | FILE...
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LARGEST 65536u
#ifndef MUTATIONS
#define MUTATIONS 20000
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* On memory of exactly that size: a read past its end is seen by AddressSanitizer. */
static void run(const uint8_t *data, size_t size)
{
	uint8_t *exact = malloc(size ? size : 1);
	if (!exact)
		exit(1);
	memcpy(exact, data, size);
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
}

static size_t mutate(uint8_t *data, size_t size)
{
	static const uint64_t odd[] = {0, 1, 0x7f, 0x80, 0xff, 0xffff, 0xffffffff, UINT64_MAX};
	for (unsigned times = 1 + next() % 4; times; times--) {
		size_t at = size ? next() % size : 0;
		switch (next() % 5) {
		case 0:
			if (size)
				data[at] = (uint8_t)next();
			break;
		case 1:
			if (size)
				data[at] ^= (uint8_t)(1u << next() % 8);
			break;
		case 2:
			if (size >= 8 && at <= size - 8)
				memcpy(data + at, &odd[next() % 8], 8);
			break;
		case 3:
			size = at;
			break;
		default: {
			size_t length = size - at;
			if (length > LARGEST - size)
				length = LARGEST - size;
			memcpy(data + size, data + at, length);
			size += length;
		}
		}
	}
	return size;
}

static void replay(const char *path)
{
	static uint8_t original[LARGEST], mutated[LARGEST];
	FILE *file = fopen(path, "rb");
	if (!file) {
		fprintf(stderr, "%s cannot be read\n", path);
		exit(1);
	}
	size_t size = fread(original, 1, sizeof(original), file);
	fclose(file);
	run(original, size);
	for (int i = 0; i < MUTATIONS; i++) {
		memcpy(mutated, original, size);
		run(mutated, mutate(mutated, size));
	}
}

static unsigned replay_folder(const char *folder)
{
	char path[4096];
	unsigned count = 0;
	DIR *directory = opendir(folder);
	struct dirent *entry;
	while (directory && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		replay(path);
		count++;
	}
	if (directory)
		closedir(directory);
	return count;
}

int main(int argc, char **argv)
{
	unsigned count = 0;
	for (int i = 1; i < argc; i++) {
		struct stat status;
		if (!stat(argv[i], &status) && S_ISDIR(status.st_mode)) {
			count += replay_folder(argv[i]);
		} else {
			replay(argv[i]);
			count++;
		}
	}
	printf("%u inputs, %d mutations of each\n", count, MUTATIONS);
	return count ? 0 : 1;
}
