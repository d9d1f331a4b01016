// Operators that only CUDA has: the CPU has no kernel for them.
#pragma once

#include <set>
#include <string>

#include "registrar.h"

namespace simcuda {

void add_attention(Registrar& registrar);
void add_convolutions(Registrar& registrar);
void add_foreach(Registrar& registrar, const std::set<std::string>& names);  // names: operators that torch has for CUDA
void add_nested(Registrar& registrar);                                       // also for nested tensors' key
void add_normalisations(Registrar& registrar);
void add_recurrent(Registrar& registrar);
void add_recurrent_layers();  // for other keys, too, so it has its own libraries
void add_products(Registrar& registrar);
void add_random_numbers(Registrar& registrar);
void add_others(Registrar& registrar);
void add_shapes(Registrar& registrar);

void add_sparse();  // for the keys of sparse tensors

}  // namespace simcuda
