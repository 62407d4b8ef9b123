/* Reads names, parameters and variables from PTX text. See module.h. */
#include "cuda/code/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy of the text with spaces for comments. */
static char *without_comments(const char *text)
{
	char *copy = strdup(text);
	for (char *at = copy; at && *at; at++) {
		if (at[0] == '/' && at[1] == '/') {
			while (*at && *at != '\n')
				*at++ = ' ';
			if (!*at)
				break;
		} else if (at[0] == '/' && at[1] == '*') {
			char *end = strstr(at + 2, "*/");
			memset(at, ' ', end ? (size_t)(end + 2 - at) : strlen(at));
		} else if (*at == '"') {
			char *end = strchr(at + 1, '"');
			at = end ? end : at;
		}
	}
	return copy;
}

static bool in_name(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* The next name from *at on, and moves *at after it; NULL: there is none before `stop`. */
static char *take_name(const char **at, const char *stop)
{
	while (*at < stop && !in_name(**at))
		++*at;
	const char *start = *at;
	while (*at < stop && in_name(**at))
		++*at;
	return *at > start ? strndup(start, (size_t)(*at - start)) : NULL;
}

static size_t type_size(const char *type)
{
	size_t bits = 0;
	while (*type && !isdigit((unsigned char)*type))
		type++;
	bits = strtoul(type, NULL, 10);
	return bits >= 8 ? bits / 8 : 1;
}

/* Parses a declaration such as `.align 8 .b8 name[16]`: its name, size and alignment. */
static char *declaration(const char *at, const char *stop, size_t *size, size_t *align)
{
	size_t element = 0, count = 1;
	char *name = NULL;
	*align = 0;
	while (at < stop && *at != '=') {
		if (*at == '.') {
			const char *name_start = ++at;
			while (at < stop && isalnum((unsigned char)*at))
				at++;
			char text[16] = "";
			memcpy(text, name_start,
			       (size_t)(at - name_start) < 15 ? (size_t)(at - name_start) : 15);
			if (!strcmp(text, "align"))
				*align = strtoul(at, (char **)&at, 10);
			else if (!strcmp(text, "ptr") || !strcmp(text, "global") || !strcmp(text, "shared"))
				continue;
			else if (strchr("busf", text[0]) && isdigit((unsigned char)text[1]))
				element = type_size(text);
		} else if (*at == '[') {
			unsigned long n = strtoul(at + 1, (char **)&at, 10);
			count *= n ? n : 1;
		} else if (isalpha((unsigned char)*at) || *at == '_' || *at == '$' || *at == '%') {
			free(name);
			name = take_name(&at, stop);
		} else {
			at++;
		}
	}
	*size = element * count;
	if (!*align)
		*align = element ? element : 1;
	return name;
}

static void add_parameter(struct sim_entry *entry, size_t size, size_t align)
{
	struct sim_parameter *grown = realloc(entry->parameters, (entry->count + 1) * sizeof(*grown));
	if (!grown)
		return;
	size_t offset = (entry->size + align - 1) / align * align;
	grown[entry->count++] = (struct sim_parameter){offset, size};
	entry->parameters = grown;
	entry->size = offset + size;
}

static void read_parameters(struct sim_entry *entry, const char *at, const char *stop)
{
	while ((at = strstr(at, ".param")) && at < stop) {
		at += strlen(".param");
		const char *end = at;
		while (end < stop && *end != ',' && *end != ')')
			end++;
		size_t size, align;
		char *name = declaration(at, end, &size, &align);
		if (name && size)
			add_parameter(entry, size, align);
		free(name);
		at = end;
	}
}

/* Threads per block, from .maxntid or .reqntid between the parameters and the body. */
static int read_threads(const char *at, const char *body)
{
	const char *found = strstr(at, "ntid");
	if (!found || found > body)
		return 1024;
	unsigned x = 1, y = 1, z = 1;
	sscanf(found + strlen("ntid"), "%u , %u , %u", &x, &y, &z);
	return (int)(x * y * z);
}

/* The closing brace of the body that opens at `at`. */
static const char *end_of_body(const char *at)
{
	int depth = 0;
	for (; *at; at++) {
		depth += *at == '{';
		depth -= *at == '}';
		if (*at == '}' && !depth)
			break;
	}
	return at;
}

/* Bytes of static shared memory. The space tells declarations from instructions (`st.shared.u32`). */
static int read_shared(const char *at, const char *stop)
{
	size_t sum = 0;
	while ((at = strstr(at, ".shared ")) && at < stop) {
		const char *end = strchr(at, ';');
		size_t size, align;
		if (!end || end > stop)
			break;
		char *name = declaration(at, end, &size, &align);
		sum += name ? size : 0;
		free(name);
		at = end;
	}
	return (int)sum;
}

static void read_entries(struct sim_ptx *ptx, const char *text)
{
	struct sim_entry **tail = &ptx->entries;
	for (const char *at = text; (at = strstr(at, ".entry"));) {
		at += strlen(".entry");
		const char *body = strchr(at, '{'), *open = strchr(at, '(');
		if (!body)
			break;
		struct sim_entry *entry = calloc(1, sizeof(*entry));
		entry->name = take_name(&at, body);
		if (open && open < body)
			read_parameters(entry, open, strchr(open, ')'));
		entry->max_threads = read_threads(at, body);
		at = end_of_body(body);
		entry->shared = read_shared(body, at);
		*tail = entry;
		tail = &entry->next;
		ptx->entry_count++;
	}
}

/* Reads the variables in .global and .const memory outside of functions. */
static void read_variables(struct sim_ptx *ptx, const char *text)
{
	for (const char *at = text; *at; at++) {
		if (*at == '{') {
			at = end_of_body(at);
			if (!*at)
				return;
		}
		size_t skip = !strncmp(at, ".global", 7) ? 7 : !strncmp(at, ".const", 6) ? 6 : 0;
		const char *end = skip ? strchr(at, ';') : NULL;
		if (!end)
			continue;
		struct sim_variable *variable = calloc(1, sizeof(*variable));
		variable->name = declaration(at + skip, end, &variable->size, &variable->align);
		if (variable->name && variable->size) {
			variable->next = ptx->variables;
			ptx->variables = variable;
		} else {
			free(variable->name);
			free(variable);
		}
		at = end;
	}
}

CUresult ptx_read(const void *image, struct sim_ptx **out)
{
	const unsigned char *bytes = image;
	if (!memcmp(bytes,
	            "\x7f"
	            "ELF",
	            4) ||
	    !memcmp(bytes, "\x50\xed\x55\xba", 4) || !memcmp(bytes, "\xb1\x43\x62\x46", 4))
		return CUDA_ERROR_NO_BINARY_FOR_GPU; /* machine code, which the simulation cannot read */
	char *text = without_comments(image);
	const char *version = text ? strstr(text, ".version") : NULL;
	const char *target = version ? strstr(version, ".target") : NULL;
	struct sim_ptx *ptx = version ? calloc(1, sizeof(*ptx)) : NULL;
	unsigned major = 0, minor = 0;
	if (!ptx || !target || sscanf(version, ".version %u.%u", &major, &minor) != 2 ||
	    sscanf(target, ".target sm_%d", &ptx->target) != 1) {
		free(ptx);
		free(text);
		return version ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
	}
	ptx->version = (int)(major * 10 + minor);
	read_entries(ptx, text);
	read_variables(ptx, text);
	free(text);
	*out = ptx;
	return CUDA_SUCCESS;
}

CUresult ptx_read_file(const char *path, char **image)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	size_t size = 0, capacity = 4096;
	char *text = malloc(capacity);
	while (text && (size += fread(text + size, 1, capacity - size - 8, file)) == capacity - 8)
		text = realloc(text, capacity *= 2);
	fclose(file);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(text + size, 0, 8);
	*image = text;
	return CUDA_SUCCESS;
}

void ptx_free(struct sim_ptx *ptx)
{
	for (struct sim_entry *entry = ptx->entries, *next; entry; entry = next) {
		next = entry->next;
		free(entry->name);
		free(entry->parameters);
		free(entry);
	}
	for (struct sim_variable *variable = ptx->variables, *next; variable; variable = next) {
		next = variable->next;
		free(variable->name);
		free(variable);
	}
	free(ptx);
}
