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

void user_references_free(struct sim_user_reference *reference)
{
	for (struct sim_user_reference *next; reference; reference = next) {
		next = reference->next;
		release(reference->object, reference->count);
		free(reference);
	}
}

struct sim_user_reference *user_references_copy(const struct sim_user_reference *reference)
{
	struct sim_user_reference *first = NULL;
	for (; reference; reference = reference->next) {
		struct sim_user_reference *own = malloc(sizeof(*own));
		if (!own)
			break;
		*own = (struct sim_user_reference){reference->object, reference->count, first};
		reference->object->references += reference->count;
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

CUresult user_references_add(struct sim_user_reference **list, CUuserObject object,
                             unsigned int count, bool move)
{
	struct sim_user_reference *reference = malloc(sizeof(*reference));
	if (!handle_is(object, SIM_USER_OBJECT) || !count || !reference) {
		free(reference);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*reference = (struct sim_user_reference){(struct sim_user_object *)object, count, *list};
	if (!move)
		reference->object->references += count;
	*list = reference;
	return CUDA_SUCCESS;
}

CUresult user_references_remove(struct sim_user_reference **list, CUuserObject object,
                                unsigned int count)
{
	for (struct sim_user_reference **at = list; *at; at = &(*at)->next) {
		struct sim_user_reference *reference = *at;
		if (reference->object != (struct sim_user_object *)object || reference->count < count)
			continue;
		reference->count -= count;
		if (!reference->count) {
			*at = reference->next;
			free(reference);
		}
		release((struct sim_user_object *)object, count);
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}
