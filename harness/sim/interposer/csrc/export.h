// What other libraries and programs see of this one.
#pragma once

#define EXPORT extern "C" __attribute__((visibility("default")))
