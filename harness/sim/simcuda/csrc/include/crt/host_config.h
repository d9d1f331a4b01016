// CUDA's file of this name checks the host's compiler. Nothing here is compiled by CUDA's.
#pragma once
