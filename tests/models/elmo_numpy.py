"""Reference bidirectional language model in NumPy, with plm_jax's parameters."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def word(params, model, characters):
    """[C] → [D]."""
    embedding, p = model.embedding, params["embedding"]
    x_CE = p["characters"][characters]
    values = []
    for i, (width, number) in enumerate(embedding.filters):
        kernel, bias = p["filters"][str(i)]["kernel"], p["filters"][str(i)]["bias"]
        for f in range(number):
            fits = range(len(characters) - width + 1)
            values.append(max((x_CE[t : t + width] * kernel[..., f]).sum() + bias[f] for t in fits))
    x = np.maximum(np.array(values), 0) if embedding.activation == "relu" else np.tanh(values)
    for i in range(embedding.highway_layers):
        carry, transform = ({k: v[i] for k, v in p["blocks"][gate].items()} for gate in ("carry", "transform"))
        gate = sigmoid(x @ carry["kernel"] + carry["bias"])
        x = gate * np.maximum(x @ transform["kernel"] + transform["bias"], 0) + (1 - gate) * x
    return x @ p["projection"]["kernel"] + p["projection"]["bias"]


def lstm(params, model, side, x_LD, cells, hiddens):
    """Returns one row of one direction, in reading order, [layers, L, D], and the states after it."""
    p, width, units = params["lstm"]["blocks"], model.embedding.width, model.lstm.cell
    outputs, cells, hiddens = [], [*cells], [*hiddens]
    for layer in range(model.lstm.layers):
        gates_kernel = np.concatenate(
            [p[name]["kernel"][layer, side].reshape(width, 4 * units) for name in ("input", "recurrent")]
        )
        steps = []
        for x in x_LD:
            gates = np.concatenate([x, hiddens[layer]]) @ gates_kernel + p["input"]["bias"][layer, side].reshape(-1)
            i, j, f, o = np.split(gates, 4)
            cell = sigmoid(f + 1) * cells[layer] + sigmoid(i) * np.tanh(j)
            cells[layer] = np.clip(cell, -model.lstm.cell_clip, model.lstm.cell_clip)
            hidden = sigmoid(o) * np.tanh(cells[layer]) @ p["projection"]["kernel"][layer, side]
            hiddens[layer] = np.clip(hidden, -model.lstm.projection_clip, model.lstm.projection_clip)
            steps.append(hiddens[layer] + (x if layer else 0))
        x_LD = np.array(steps)
        outputs.append(x_LD)
    return np.array(outputs), np.array(cells), np.array(hiddens)
