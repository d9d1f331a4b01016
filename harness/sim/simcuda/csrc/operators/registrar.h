// Registers operators for the dispatch key CUDA, and remembers how each is served.
#pragma once

#include <torch/library.h>

#include <map>
#include <string>
#include <utility>

#include "operators.h"

namespace simcuda {

enum class How {
  shaped,       // later than the launch, with shapes that torch's C++ or a rule tells
  meta,         // later than the launch, with shapes that the dispatcher's kernel for "meta" tells
  own,          // later than the launch, by a body of ours, or made of other operators by us
  composite,    // made of other operators by torch
  synchronous,  // at once, once the stream has come to its end
  waiting,      // the same, as on CUDA
  kept,         // by torch's own code
  unserved,     // refused
};
const char* text(How how);

struct Served {
  How how;
  std::string reason;
};

class Registrar {
 public:
  explicit Registrar(torch::Library& library) : library_(library) {}

  bool served(const std::string& name) const { return served_.count(name) != 0; }
  const std::map<std::string, Served>& all() const { return served_; }

  // Nothing where this torch has no such operator, or where it is served already.
  void launched(const std::string& name, operators::Recipe recipe, How how);
  void boxed(const std::string& name, torch::CppFunction kernel, How how, std::string reason = "");
  void kept(const std::string& name, std::string reason);

  // A body of ours on the CPU's tensors. It is asked for shapes too, with tensors of the device "meta".
  void body(const std::string& name, operators::Body body);
  // A function on CUDA's tensors, made of other operators.
  template <typename Function>
  void composed(const std::string& name, Function&& function) {
    boxed(name, torch::CppFunction(std::forward<Function>(function)), How::own);
  }

 private:
  torch::Library& library_;
  std::map<std::string, Served> served_;
};

}  // namespace simcuda
