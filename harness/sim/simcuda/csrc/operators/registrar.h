// Registers operators for the dispatch key CUDA, and records how each is served.
#pragma once

#include <torch/library.h>

#include <map>
#include <string>
#include <utility>

#include "operators.h"

namespace simcuda {

enum class How {
  shaped,       // launched; torch's C++ or a rule computes the shapes
  meta,         // launched; the dispatcher's kernel for "meta" computes the shapes
  own,          // launched with the simulation's own body, or built from other operators by the simulation
  composite,    // built from other operators by torch
  synchronous,  // computed in the call, after waiting for the stream
  waiting,      // the same; CUDA waits there, too
  kept,         // torch's own code
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

  // Have no effect if this torch lacks the operator, or if it is already served.
  void launched(const std::string& name, operators::Recipe recipe, How how);
  void boxed(const std::string& name, torch::CppFunction kernel, How how, std::string reason = "");
  void kept(const std::string& name, std::string reason);
  void composite(const std::string& name);

  // Registers a body for CPU tensors. It also computes the shapes, on "meta" tensors.
  void body(const std::string& name, operators::Body body);
  // Registers a function on CUDA tensors that is built from other operators.
  template <typename Function>
  void composed(const std::string& name, Function&& function) {
    boxed(name, torch::CppFunction(std::forward<Function>(function)), How::own);
  }

 private:
  torch::Library& library_;
  std::map<std::string, Served> served_;
};

}  // namespace simcuda
