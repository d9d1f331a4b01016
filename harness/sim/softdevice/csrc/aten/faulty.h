// Wrong arithmetic on demand.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace soft::aten {

// What an operator's arithmetic can be made to do wrong; decided by its name.
enum class Weakness { none, reduction, product };
Weakness weakness_of(const std::string& name);

// In the stream's thread, before and after a kernel of that weakness ran.
void spoil_arguments(Weakness weakness, std::vector<c10::IValue>& arguments);
void spoil_result(Weakness weakness, at::Tensor& result);

}  // namespace soft::aten
