"""Models of transformers with random weights, for comparison."""

import zlib

import torch


def randomised(architecture, config, untie=()):
    """A model none of whose tensors, biases and norms included, is at its initial value.

    Args:
      architecture: the class.
      config: its config.
      untie: tensors that get numbers of their own.
    """
    torch.manual_seed(zlib.crc32(config.to_json_string().encode()))
    model = architecture(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("orm" in name and name.endswith("weight")), std=0.3)
    return model


def assert_same_state(model, again):
    """Fails unless all tensors are equal to the bit."""
    one, other = model.state_dict(), again.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
