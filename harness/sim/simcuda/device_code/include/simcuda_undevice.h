// NVIDIA's headers have code for the host and for devices, and choose by these names. Without a guard: it is included
// before each of them, and simcuda_redevice.h after it.
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#pragma push_macro("__CUDA_ARCH__")
#undef __CUDACC__
#undef __CUDACC_RTC__
#undef __CUDA_ARCH__
