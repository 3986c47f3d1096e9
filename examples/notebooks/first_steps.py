# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # First steps
#
# A scene, a run, a verdict. Open this file as a notebook with jupytext, or run it as it is: `python first_steps.py`.

# %%
import fedwinnow

# %% [markdown]
# ## A scene
#
# Handwritten digits are dealt out to eight sites. Half of the sites mislabel: between 40 % and 60 % of what they hold.
# Nominal is what was asked for, realised is what was counted.

# %%
scene = fedwinnow.Scene.make(
    "digits:train=600",
    clients=8,
    partition="dirichlet:alpha=1",
    noise="uniform:share=0.5,low=0.4,high=0.6",
    seed=3,
)
for name, size, wrong in zip(scene.site_names, scene.holdings.sizes, scene.realised, strict=True):
    print(f"{name}: {size} samples, {wrong:.0%} wrong")

# %% [markdown]
# ## A run
#
# A scene is made once and used by as many runs as you like. `participation=1` asks every site in every round. While the
# run goes on, one line tells how far it is; run the cell again, and the finished result is there at once (`redo=True`
# would train anew).

# %%
result = fedwinnow.run(
    scene=scene,
    method="fedavg",
    model="mlp",
    rounds=6,
    epochs=2,
    participation=1.0,
    out="notebook/fedavg",
)
print(result)

# %% [markdown]
# Every number is in the run folder, and the result reads it. A round is a dictionary, a column is an array. A result, a
# scene or a table at the end of a cell shows itself as a small table; `result.plot()` and `scene.plot()` are pictures.

# %%
rounds, accuracy = result.curve("accuracy")
for number, value in zip(rounds, accuracy, strict=True):
    print(f"round {number:.0f}: {value:.1%}")

# %% [markdown]
# ## What each site is told
#
# At the end every site judges its own labels. Here the truth is known, so the verdicts can be measured.

# %%
samples = result.summary["detection"]["samples"]
print(f"wrong labels found: recall {samples['recall']:.0%}, precision {samples['precision']:.0%}")
print(f"all of it on one page: {result.folder / 'report.html'}")
