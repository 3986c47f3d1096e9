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
# # Compare methods
#
# Three methods, two scenes, three seeds. At one seed every method meets the same scene and the same first weights, so
# the differences can be compared in pairs. The settings are small: what you see is how it is done, not who wins.

# %%
import fedwinnow

# %% [markdown]
# ## The sweep
#
# Settings that hold for all runs are keywords; a method or a scene may have settings of its own. Finished runs are
# skipped when this cell is run again.

# %%
swept = fedwinnow.sweep(
    ["fedavg", "gce", {"name": "MixUp", "method": "mixup"}],
    scenes=[
        {"name": "light", "noise": "constant:rate=0.2"},
        {"name": "heavy", "noise": "constant:rate=0.5"},
    ],
    seeds=3,
    out="notebook/sweep",
    data="digits:train=300",
    model="linear",
    clients=5,
    participation=1.0,
    rounds=3,
    epochs=1,
)
print(f"{len(swept.outcomes)} runs, {len(swept.failed)} failed")

# %% [markdown]
# ## The table
#
# Mean ± sample standard deviation over seeds. Bold only where a paired test, corrected over the comparisons, says that
# a row is better than every other; ≈ where it cannot be told apart from the best.

# %%
print(swept.table(show="last10,auroc"))

# %% [markdown]
# The same table from the folders, by another score, into a file for a paper:

# %%
table = fedwinnow.table("notebook/sweep", show="last10", score="balanced_accuracy", test="wilcoxon")
table.save("notebook/table.tex")
print(table.caption)
