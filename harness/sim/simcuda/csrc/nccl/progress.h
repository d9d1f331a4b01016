// The one thread of a process that looks whether other ranks have come. It sleeps until one of them rings.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "communicator.h"

namespace simcuda::nccl {

void start_watching();  // once, at a known time and not at the first collective that has to wait

// Has the run's stream go on when the others have come.
void watch(const std::shared_ptr<Launch>& launch, const std::shared_ptr<Run>& run);
void look_again();  // something has changed in this process

// Starts a thread that takes no signal of the program.
std::thread quiet_thread(std::function<void()> body);

}  // namespace simcuda::nccl
