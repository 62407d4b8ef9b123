// A small program for bench/gpu/tools.py: adds vectors. With an argument above 0 the kernel writes that
// many elements past the end, which a memory checker must report.
#include <cstdio>
#include <cstdlib>

__global__ void add(float *sum, const float *other, int count, int beyond)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count + beyond)
		sum[i] += other[i];
}

int main(int argc, char **argv)
{
	const int count = 1 << 20;
	int beyond = argc > 1 ? atoi(argv[1]) : 0;
	float *sum, *other;
	if (cudaMalloc(&sum, count * sizeof(float)) || cudaMalloc(&other, count * sizeof(float)))
		return 2;
	cudaMemset(sum, 0, count * sizeof(float));
	cudaMemset(other, 0, count * sizeof(float));
	for (int round = 0; round < 3; round++)
		add<<<(count + beyond + 255) / 256, 256>>>(sum, other, count, beyond);
	return cudaDeviceSynchronize() ? 1 : 0;
}
