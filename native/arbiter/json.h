/* Writing JSON into a growing text. Commas are put where they belong; strings are escaped, and
 * bytes that are no UTF-8 become U+FFFD. Out of memory is remembered, not reported at each step. */
#ifndef ARBITER_JSON_H
#define ARBITER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
	char *text;
	size_t used, size;
	bool failed;
};

/* `key` NULL: an element of a list, or the whole. `bracket`: '{' or '['. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_string(struct json *json, const char *key, const char *value); /* NULL: null */
void json_number(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);
/* The newline that ends a reply. */
void json_end(struct json *json);
void json_free(struct json *json);

#endif
