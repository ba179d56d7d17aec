// A model's sizes without its weights: Hugging Face's config.json read into a description, for devices that
// draw weights at random so that speed can be measured where no checkpoint can be had. Shapes of known models
// lie in gpu-worker/model/shapes/. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "gpu-worker/model/description.h"

namespace ringmaster::gpu_worker {

// Errors: kNotFound, kMalformed: the file and the key; kUnsupported: the architecture or the setting.
Result<ModelDescription> describe_shape(const std::string& path);

}  // namespace ringmaster::gpu_worker
