/* User objects: a destructor that runs when the last reference from graphs and the program is gone. */
#include "cuda/graph/graph.h"

#include <stdlib.h>

struct sim_user_object {
	void *data;
	CUhostFn destroy;
	unsigned int references;
};

static void release(struct sim_user_object *object, unsigned int count)
{
	object->references -= count < object->references ? count : object->references;
	if (object->references)
		return;
	handle_remove(object);
	object->destroy(object->data);
	free(object);
}

void held_free(struct sim_held *held)
{
	for (struct sim_held *next; held; held = next) {
		next = held->next;
		release(held->object, held->count);
		free(held);
	}
}

struct sim_held *held_copy(const struct sim_held *held)
{
	struct sim_held *first = NULL;
	for (; held; held = held->next) {
		struct sim_held *own = malloc(sizeof(*own));
		if (!own)
			break;
		*own = (struct sim_held){held->object, held->count, first};
		held->object->references += held->count;
		first = own;
	}
	return first;
}

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy,
                            unsigned int references, unsigned int flags)
{
	SIM_ENTER();
	if (!out || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_user_object *object = malloc(sizeof(*object));
	if (!object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*object = (struct sim_user_object){data, destroy, references};
	handle_add(object, SIM_USER_OBJECT);
	*out = (CUuserObject)object;
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count)
{
	SIM_ENTER();
	if (!handle_is(handle, SIM_USER_OBJECT) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	((struct sim_user_object *)handle)->references += count;
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count)
{
	SIM_ENTER();
	if (!handle_is(handle, SIM_USER_OBJECT) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	release((struct sim_user_object *)handle, count);
	return CUDA_SUCCESS;
}

CUresult held_add(struct sim_held **list, CUuserObject object, unsigned int count, bool move)
{
	struct sim_held *held = malloc(sizeof(*held));
	if (!handle_is(object, SIM_USER_OBJECT) || !count || !held) {
		free(held);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*held = (struct sim_held){(struct sim_user_object *)object, count, *list};
	if (!move)
		held->object->references += count;
	*list = held;
	return CUDA_SUCCESS;
}

CUresult held_remove(struct sim_held **list, CUuserObject object, unsigned int count)
{
	for (struct sim_held **at = list; *at; at = &(*at)->next) {
		struct sim_held *held = *at;
		if (held->object != (struct sim_user_object *)object || held->count < count)
			continue;
		held->count -= count;
		if (!held->count) {
			*at = held->next;
			free(held);
		}
		release((struct sim_user_object *)object, count);
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}
