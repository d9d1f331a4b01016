// The interface between code for a GPU, which is compiled for the host, and the runtime, which runs its threads.
//
// It is included before programs that may define any name of the C++ library, so it includes nothing.
#pragma once

extern "C" {

// `written`: a bit for each of its first 64 words of 8 bytes that is an address to which the kernel may write.
struct SimcudaParameter {
  unsigned size, alignment;
  unsigned long long written;
};

// A kernel. `call` runs one of its threads. `shared`: static bytes. `refusal`: why it cannot run, or null.
struct SimcudaKernel {
  const char* name;  // as the linker knows it
  void (*call)(void** arguments);
  const SimcudaParameter* parameters;
  unsigned count;
  unsigned max_threads, registers, shared;
  const char* refusal;
};

struct SimcudaVariable {
  const char* name;
  void* address;
  unsigned long long size;
};

// What a module exports as `simcuda_module`.
struct SimcudaModule {
  const SimcudaKernel* kernels;
  unsigned kernel_count;
  const SimcudaVariable* variables;
  unsigned variable_count;
};

// Makes a kernel known by a handle, which launches name: a host function, or the kernel itself. Both must stay valid.
void simcudaAddKernel(const void* handle, const SimcudaKernel* kernel);
// Makes a variable of a module memory of the current device.
void simcudaAddVariable(void* address, unsigned long long size);

// The rest is called by a thread of a kernel.

enum SimcudaWarp {
  simcuda_warp_sync,
  simcuda_warp_shuffle,  // the value of the lane `source`
  simcuda_warp_ballot,   // a bit per lane with a value that is not zero
  simcuda_warp_match,    // a bit per lane with the same value
  simcuda_warp_add,      // of 32 bits, as the five below
  simcuda_warp_and,
  simcuda_warp_or,
  simcuda_warp_xor,
  simcuda_warp_min,
  simcuda_warp_max,
  simcuda_warp_min_signed,
  simcuda_warp_max_signed,
};

// Waits for all threads of the block. Returns how many there are in the upper half, and how many have passed a
// predicate that is not zero in the lower half.
unsigned long long simcudaBarrier(int predicate);
// Waits for the lanes of the mask, and returns what each of them gets.
unsigned long long simcudaWarpExchange(SimcudaWarp kind, unsigned mask, unsigned long long value, unsigned source);
// Returns which lanes reach the same place together.
unsigned simcudaActiveMask(const void* place);
// Lets other threads of the block run: a loop that waits for one of them calls it.
void simcudaYield();
// Ends the kernel with this cudaError_t, and its device with it.
__attribute__((noreturn)) void simcudaEndKernel(int error, const char* why);
__attribute__((noreturn)) void simcudaAssertFailed(const char* expression, const char* file, unsigned line,
                                                   const char* function);
}
