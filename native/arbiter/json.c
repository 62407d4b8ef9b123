#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append(struct json *json, const char *text, size_t length)
{
	if (json->failed)
		return;
	if (length > json->size - json->used) {
		size_t size = json->size ? json->size : 1024;
		while (size - json->used < length)
			size *= 2;
		char *grown = realloc(json->text, size);
		if (!grown) {
			json->failed = true;
			return;
		}
		json->text = grown;
		json->size = size;
	}
	memcpy(json->text + json->used, text, length);
	json->used += length;
}

/* Length of the valid UTF-8 sequence at `text`; 0: it is not valid. */
static size_t utf8_length(const unsigned char *text)
{
	static const struct {
		unsigned char mask, lead;
		unsigned least;
	} forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
	for (size_t extra = 0; extra < 4; extra++) {
		if ((text[0] & forms[extra].mask) != forms[extra].lead)
			continue;
		unsigned code = text[0] & (unsigned char)~forms[extra].mask;
		for (size_t i = 1; i <= extra; i++) {
			if ((text[i] & 0xc0) != 0x80)
				return 0;
			code = code << 6 | (text[i] & 0x3f);
		}
		bool surrogate = code >= 0xd800 && code <= 0xdfff;
		return code < forms[extra].least || code > 0x10ffff || surrogate ? 0 : extra + 1;
	}
	return 0;
}

static void append_quoted(struct json *json, const char *value)
{
	append(json, "\"", 1);
	while (*value) {
		size_t length = utf8_length((const unsigned char *)value);
		char escape[8];
		if (!length) {
			append(json, "\\ufffd", 6);
			length = 1;
		} else if (*value == '"' || *value == '\\') {
			escape[0] = '\\';
			escape[1] = *value;
			append(json, escape, 2);
		} else if ((unsigned char)*value < 0x20 || *value == 0x7f) {
			snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)(unsigned char)*value);
			append(json, escape, 6);
		} else {
			append(json, value, length);
		}
		value += length;
	}
	append(json, "\"", 1);
}

static void write_key(struct json *json, const char *key)
{
	char last = json->used ? json->text[json->used - 1] : '{';
	if (last != '{' && last != '[')
		append(json, ",", 1);
	if (key) {
		append_quoted(json, key);
		append(json, ":", 1);
	}
}

void json_open(struct json *json, const char *key, char bracket)
{
	write_key(json, key);
	append(json, &bracket, 1);
}

void json_close(struct json *json, char bracket)
{
	append(json, &bracket, 1);
}

void json_string(struct json *json, const char *key, const char *value)
{
	write_key(json, key);
	if (value)
		append_quoted(json, value);
	else
		append(json, "null", 4);
}

void json_number(struct json *json, const char *key, uint64_t value)
{
	char digits[24];
	int length = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	write_key(json, key);
	append(json, digits, (size_t)length);
}

void json_bool(struct json *json, const char *key, bool value)
{
	write_key(json, key);
	append(json, value ? "true" : "false", value ? 4 : 5);
}

void json_end(struct json *json)
{
	append(json, "\n", 1);
}

void json_free(struct json *json)
{
	free(json->text);
	memset(json, 0, sizeof(*json));
}
