// NCCL's header includes CUDA's file of this name, but uses nothing of it. CUDA's own file needs headers of CUDA's
// compiler.
#pragma once
