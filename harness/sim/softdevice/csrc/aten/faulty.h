// Injected arithmetic errors.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace soft::aten {

// The arithmetic error that can be injected into an operator, by the operator's name.
enum class Weakness { none, reduction, product };
Weakness weakness_of(const std::string& name);

// Called in the stream's thread before and after a kernel with that weakness.
void spoil_arguments(Weakness weakness, std::vector<c10::IValue>& arguments);
void spoil_result(Weakness weakness, at::Tensor& result);

}  // namespace soft::aten
